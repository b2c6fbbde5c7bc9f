//go:build services

package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A build with a given version reports it. The image is built so, without a repository.
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

// TestBuildIsSmall: the service's program has its size bound. The size grows at once if a linked package looks up
// methods by names that are known only at run time, as text/template does: the linker then keeps all methods of all
// types. "go build -ldflags=-dumpdep" names the package, by "<ReflectMethod>".
func TestBuildIsSmall(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	const most = 45_000_000
	if file.Size() > most {
		t.Errorf("the program has %d bytes, more than %d", file.Size(), most)
	}
}
