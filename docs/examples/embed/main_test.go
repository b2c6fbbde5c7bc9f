package main

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), out.WriteString); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "Good morning, Ada!"); n != 2 {
		t.Errorf("%d greetings, want 2:\n%s", n, &out)
	}
}
