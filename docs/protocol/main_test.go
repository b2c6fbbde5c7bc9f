package main

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		arguments []string
		out, err  string
	}{
		{[]string{"--calls", "1"}, "states: no promise is broken", ""},
		{[]string{"--without", "insert-first"}, "put (call 1) flips the job", ""},
		{[]string{"--without", "nothing"}, "", `there is no rule "nothing"`},
		{[]string{"--calls", "1", "--limit", "1"}, "", "more than 1 states"},
	} {
		var out strings.Builder
		err := run(c.arguments, &out)
		if c.err == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %v", c.arguments, err)
		}
		if !strings.Contains(out.String(), c.out) {
			t.Errorf("%q prints %q", c.arguments, out.String())
		}
	}
}
