package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/sim"
)

// TestKeep: the least plan that breaks a guarantee is kept for the tests if that is asked for; of a history whose
// process ends without a report, it is the plan of its seed.
func TestKeep(t *testing.T) {
	reports := func(rules string) string {
		return fmt.Sprintf(`for o; do case $o in -sim.out=*)
			echo '{"Plan": {"Seed": 7, "Replicas": 2, "Skew": [0, 0]}, "Broken": [%s]}' >"${o#*=}";; esac; done`, rules)
	}
	const rule = `{"Rule": "some rule"}`
	for name, c := range map[string]struct {
		keep, breaks bool
		simulation   string
		replicas     int // of the kept plan; 0 if none is kept
	}{
		"kept":             {true, true, reports(rule), 2},
		"not kept":         {false, true, reports(rule), 0},
		"without a report": {true, true, "exit 1", sim.NewPlan(7).Replicas},
		"nothing broken":   {true, false, reports(""), 0},
	} {
		root := t.TempDir()
		p := program{root: root, folder: root, executable: filepath.Join(root, "simulation")}
		kept := filepath.Join(root, "sim", "testdata", "seed-7.json")
		if err := os.MkdirAll(filepath.Dir(kept), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.executable, []byte("#!/bin/sh\n"+c.simulation+"\n"), 0o700); err != nil { //nolint:gosec // it runs
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := newSearch(options{histories: 1, workers: 1, repeat: 1, seed: 7, keep: c.keep}, p, &out).run(t.Context())
		if (err != nil) != c.breaks {
			t.Errorf("%s: %v", name, err)
		}
		b, err := os.ReadFile(kept) //nolint:gosec // a file of this test
		var plan sim.Plan
		if err == nil {
			err = json.Unmarshal(b, &plan)
		}
		if (err == nil) != (c.replicas > 0) || plan.Replicas != c.replicas || strings.Contains(out.String(), kept) != (c.replicas > 0) {
			t.Errorf("%s: %v, %d replicas\n%s", name, err, plan.Replicas, &out)
		}
	}
}
