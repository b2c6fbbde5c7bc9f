package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/openapi"

	"github.com/carillon-scheduler/carillon/cmd/internal/released"
	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
)

// The files of the last release.
var (
	releasedSurface = filepath.Join("..", "..", "docs", "released", "surface.json")
	acceptedBreaks  = filepath.Join("..", "..", "docs", "released", "accepted.txt")
)

// TestReleasedSurface: users of the API, the commands, the variables and the metrics of the last release can continue.
// TestMetrics checks that the metrics are those of docs/metrics.md, and the tests of handlers that the API is the
// specified one.
func TestReleasedSurface(t *testing.T) {
	t.Setenv("HOME", "/home/user") // defaults must not depend on it
	present := make(released.Surface)
	if err := present.AddSpecification(openapi.JSON()); err != nil {
		t.Fatal(err)
	}
	present.AddCommands(program())
	for _, name := range remote.Variables {
		present.AddVariable(name)
	}
	for name, described := range documentedMetrics(t) {
		kind, labels, _ := strings.Cut(described, " ")
		present.AddMetric(name, kind, labels)
	}
	if os.Getenv("CARILLON_TEST_RELEASED") == "1" {
		if err := os.WriteFile(releasedSurface, present.Format(), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(acceptedBreaks, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(releasedSurface)
	if err != nil {
		t.Fatal(err)
	}
	release, err := released.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	broken := released.Broken(release, present)
	for _, name := range accepted(t) {
		if broken[name] == nil {
			t.Errorf("%s accepts a break of %q, which there is not: remove the line", acceptedBreaks, name)
		}
		delete(broken, name)
	}
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		t.Errorf("%s %s. Users of the last release rely on it: keep it, or see docs/released/README.md",
			name, strings.Join(broken[name], "; "))
	}
}

// accepted returns the names in the file of accepted breaks. Each line has a name, a colon and the reason.
func accepted(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile(acceptedBreaks)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, reason, found := strings.Cut(strings.TrimSpace(line), ": ")
		if !found || reason == "" {
			t.Errorf("%s: %q must be a name, a colon and the reason", acceptedBreaks, line)
		}
		names = append(names, name)
	}
	return names
}
