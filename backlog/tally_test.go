package backlog_test

import (
	"maps"
	"testing"

	"github.com/carillon-scheduler/carillon/backlog"
)

// TestTally: whole numbers are divided in the proportions of the tally, and all of them are given.
func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		of   backlog.Tally
		n    int
		want map[string]int
	}{
		"empty":            {backlog.Tally{}, 5, map[string]int{}},
		"nothing in it":    {backlog.Tally{"a": 0}, 5, map[string]int{}},
		"one":              {backlog.Tally{"a": 3}, 5, map[string]int{"a": 5}},
		"even":             {backlog.Tally{"a": 2, "b": 2}, 10, map[string]int{"a": 5, "b": 5}},
		"in proportion":    {backlog.Tally{"a": 1, "b": 3}, 8, map[string]int{"a": 2, "b": 6}},
		"with a remainder": {backlog.Tally{"a": 1, "b": 1, "c": 1}, 10, map[string]int{"a": 3, "b": 3, "c": 4}},
		"too few":          {backlog.Tally{"a": 1, "b": 1, "c": 1}, 1, map[string]int{"a": 0, "b": 0, "c": 1}},
		"none to give":     {backlog.Tally{"a": 1}, 0, map[string]int{"a": 0}},
	} {
		got := map[string]int{}
		c.of.Divide(c.n, func(name string, n int) { got[name] += n })
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
