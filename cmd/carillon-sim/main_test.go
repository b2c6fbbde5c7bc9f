package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	for args, fault := range map[string]string{
		"--histories 5 --seed 7": "", "--histories 0": "--histories", "--workers 0": "--workers", "more": "more", "--unknown": "unknown",
		"--store sqlite:x.db --minutes 5": "", "--store sqlite:x.db --minutes 0": "--minutes", "--control ctl": "--store",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if o, err := parse(nil, io.Discard); err != nil || o.seed == 0 || o.histories != 100 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRuntimeCanBePatched: the patches fit this Go, and a text that they do not fit is refused.
func TestRuntimeCanBePatched(t *testing.T) {
	folder := t.TempDir()
	goroot, err := goEnv(t.Context(), "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	for name, patches := range overlay {
		if err := rewrite(filepath.Join(goroot, "src", name), filepath.Join(folder, "patched.go"), patches, added[name]); err != nil {
			t.Error(err)
		}
	}
	other := filepath.Join(folder, "other.go")
	if err := os.WriteFile(other, []byte("package other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(other, filepath.Join(folder, "patched.go"), overlay["runtime/rand.go"], ""); err == nil || !strings.Contains(err.Error(), "--quick") {
		t.Errorf("a file of another form: %v", err)
	}
}
