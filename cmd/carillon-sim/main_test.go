package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// TestSummary: undecided histories are told, and fail nothing.
func TestSummary(t *testing.T) {
	for _, one := range []struct {
		broken, undecided []uint64
		says, fault       string
	}{
		{says: "\nall keep all guarantees\n"},
		{undecided: []uint64{9, 7}, says: "\n2 histories are undecided, of the seeds [7 9]: no order of all operations was found or excluded " +
			"in time\nall others keep all guarantees\n"},
		{broken: []uint64{8}, fault: "1 histories break a guarantee, of the seeds [8]"},
	} {
		var out strings.Builder
		s := newSearch(options{histories: 3}, program{}, &out)
		s.done, s.broken, s.undecided = 3, one.broken, one.undecided
		err := s.summary(time.Minute)
		if !strings.HasSuffix(out.String(), one.says) || (err == nil) != (one.fault == "") || err != nil && err.Error() != one.fault {
			t.Errorf("%v, %v: it prints %q, and returns %v", one.broken, one.undecided, out.String(), err)
		}
	}
}

// TestRuntimeCanBePatched: the patches fit this Go, and a text that they do not fit is refused.
func TestRuntimeCanBePatched(t *testing.T) {
	folder := t.TempDir()
	goroot, err := goEnv(t.Context(), "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	for _, files := range []map[string][]patch{overlay, settable} {
		if err := replace(goroot, folder, files, nil, map[string]string{}); err != nil {
			t.Error(err)
		}
	}
	other := filepath.Join(folder, "other.go")
	if err := os.WriteFile(other, []byte("package other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(other, filepath.Join(folder, "patched.go"), overlay["runtime/rand.go"], ""); err == nil || !strings.Contains(err.Error(), "another form") {
		t.Errorf("a file of another form: %v", err)
	}
}
