package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/docs/protocol/model"
)

// TestFaultsFit: the patches of the seeded faults fit the code, tell their effects, name rules that exist, and are the
// rows of the table.
func TestFaultsFit(t *testing.T) {
	const root = "../.."
	faults, err := readFaults(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) < 40 {
		t.Errorf("there are %d faults", len(faults))
	}
	var rules, rows []string
	for _, r := range model.Rules() {
		rules = append(rules, r.String())
	}
	b, err := os.ReadFile(root + "/" + tableFile)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(b), tableHead+"\n")
	if !found {
		t.Fatalf("%s has no table of the faults", tableFile)
	}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if cells := strings.Split(line, "`"); len(cells) > 1 {
			rows = append(rows, cells[1])
		}
	}
	for i := range faults {
		f := &faults[i]
		if f.text == "" || f.rule != "" && !slices.Contains(rules, f.rule) {
			t.Errorf("%s: %q, rule %q", f.name, f.text, f.rule)
		}
		if i >= len(rows) || rows[i] != f.name {
			t.Errorf("%s is not row %d of the table", f.name, i)
		}
		folder := t.TempDir()
		absolute, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.patched(t.Context(), absolute+"/"+root, folder); err != nil {
			t.Error(err)
		}
	}
	if len(rows) != len(faults) {
		t.Errorf("the table has %d rows for %d faults", len(rows), len(faults))
	}
	if _, err := readFaults(root, []string{"no-such-fault"}); err == nil {
		t.Error("a name that no patch has is not refused")
	}
}
