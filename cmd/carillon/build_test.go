//go:build services

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A build that is told its version, as that of the image is, which has no repository, tells it.
func TestBuildTellsItsVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carillon")
	build := exec.Command("../../.ci/build", path)
	build.Env = append(os.Environ(), "VERSION=v9.8.7-6-g543210f")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(path, "--version").Output(); err != nil || !strings.HasPrefix(string(out), "carillon v9.8.7-6-g543210f") {
		t.Errorf("it says %s, %v", out, err)
	}
}
