package store_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A claim does not find again at once what it has put back, however early it claims.
func TestPutBackBesideAnEarlyWindow(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, early := range []time.Duration{0, 3 * time.Second} {
		p := store.ClaimParams{Now: now, Early: early, Lease: time.Minute}
		orphan, drop := store.PutBack(job.NewRevision(now.Add(-time.Second)), p)
		if drop || orphan.Sub(p.Due()) != time.Second {
			t.Errorf("early by %s: an orphan is due %s after the claim's bound, dropped %v", early, orphan.Sub(p.Due()), drop)
		}
		if after := store.PutBackUnexpanded(p).Sub(p.Due()); after != 250*time.Millisecond {
			t.Errorf("early by %s: what is not expanded is due %s after the claim's bound", early, after)
		}
		for _, at := range []time.Duration{-time.Second, 2 * time.Second} { // from now
			if due := store.PutBackPaused(now.Add(at), now, p); !due.After(p.Due()) {
				t.Errorf("early by %s: what is paused, of an instant %s ahead, is due at %s", early, at, due)
			}
		}
	}
}
