package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestServiceHoldsNoBench: the service is not linked with the bench, which empties stores, nor with packages that only
// the bench needs.
func TestServiceHoldsNoBench(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../carillon-bench").Output()
	if err != nil {
		t.Fatal(err)
	}
	both := "\n" + string(out)
	if out, err = exec.Command("go", "list", "-deps", ".").Output(); err != nil {
		t.Fatal(err)
	}
	service := "\n" + string(out)
	for _, name := range []string{"/cmd/carillon-bench", "/cmd/carillon-bench/bench", "/franz-go/pkg/kadm"} {
		if !strings.Contains(both, name+"\n") {
			t.Errorf("the bench is not linked with %s: the test shows nothing", name)
		}
		if strings.Contains(service, name+"\n") {
			t.Errorf("the service is linked with %s", name)
		}
	}
}
