package memory_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, newMemory)
}

func newMemory(*testing.T) storetest.Opener {
	s := memory.New()
	return func() (store.Store, error) { return s, nil }
}

func TestOpenURL(t *testing.T) {
	for url, ok := range map[string]bool{"memory:": true, "memory:jobs": false, "memory://host": false, "sqlite:x": false, "": false} {
		s, err := memory.Open(t.Context(), url)
		if (err == nil) != ok || (s != nil) != ok {
			t.Errorf("open %q answers %v", url, err)
		}
	}
}

// TestIsShort: the reference is short enough to be read as the contract.
func TestIsShort(t *testing.T) {
	code, err := os.ReadFile("memory.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(code, []byte("\n")); n > 700 {
		t.Errorf("it has %d lines, want at most 700", n)
	}
}

// TestHistory: the store keeps history.
func TestHistory(t *testing.T) {
	historytest.Run(t, newMemory)
}

// TestDifferential: the differences that the comparison ignores are the only ones between two stores of the same kind.
func TestDifferential(t *testing.T) {
	reference := func() store.Store { return memory.New() }
	storetest.Differential(t, 50, reference, newMemory)
}
