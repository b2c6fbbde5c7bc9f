//go:build services

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// TestImportTooLarge: the error names the job that one kind of store can hold and another can't, with a remedy.
func TestImportTooLarge(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "export")
	carillon(t, 0, "export", "--store="+filled(t, 2), "--output="+file)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	large := []byte("http://127.0.0.1/" + strings.Repeat("x", 48e6)) // which is in the first job's callback
	if err := os.WriteFile(file, bytes.Replace(content, []byte("http://127.0.0.1/"), large, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	to := strings.TrimSuffix(needed(t, "CARILLON_TEST_MONGODB_URI"), "/") + "/move_" + strings.ToLower(job.NewToken())
	_, stderr := carillon(t, cli.ExitFailure, "import", "--store="+to, "--input="+file)
	expectContains(t, "the import", stderr, "k00000", "larger than the store can keep", "another kind of store")
}
