//go:build services

package mongodb_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func trigger(t *testing.T, s store.Store) error {
	t.Helper()
	n := name("k")
	const position = 12345
	return s.Trigger(t.Context(), job.Occurrence{
		ID: job.OccurrenceID(n, "", epoch, position, ""), Name: n, Position: position, Timestamp: epoch, DueAt: epoch,
		Own: &job.Target{Callback: job.Callback{Type: "http", Data: []byte(`{}`)}},
	})
}

// TestTriggerMeetsACancel: a trigger of a job that is cancelled at the same time is cancelled with it, or is not found.
func TestTriggerMeetsACancel(t *testing.T) {
	cancel := func(t *testing.T, s store.Store) {
		t.Helper()
		if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name     string
		inserted bool // before the cancel
		claimed  bool // before the job is looked at again
		want     error
	}{
		{"before the insertion", false, false, store.ErrNotFound},
		{"before the insertion, and a claim", false, true, store.ErrNotFound},
		{"after the insertion", true, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			s := db.open(t)
			mustPut(t, s, newPut("k", epoch))
			relayed, r := db.relayed(t)
			var held []store.Claimed
			reads := 0
			r.set(func(seen command) verdict {
				again := false
				if seen.name == "find" && seen.collection == "jobs" {
					reads++
					again = reads == 2
				}
				if again && c.inserted || seen.name == "insert" && !c.inserted {
					cancel(t, s)
				}
				if again && c.claimed {
					held = mustClaim(t, s, epoch, 1)
				}
				return pass
			})
			if err := trigger(t, relayed); !errors.Is(err, c.want) {
				t.Errorf("trigger answers %v, want %v", err, c.want)
			}
			r.set(nil)
			for _, h := range held {
				mustSettle(t, s, h, store.Retry)
			}
			if n := db.count(t, bson.M{}); n != 0 || c.claimed && len(held) != 1 {
				t.Errorf("%d occurrences are left, %d were held", n, len(held))
			}
		})
	}
}

// TestTriggerMeetsANewJob: a trigger of a job that is cancelled and put anew at the same time is not the new job's. One of
// a job that is replaced is.
func TestTriggerMeetsANewJob(t *testing.T) {
	later := epoch.Add(time.Millisecond)
	for _, c := range []struct {
		name            string
		cancelled, anew bool
		command         string
		n               int
		want            error
		left            int
	}{
		{"cancelled and put, before the insertion", true, false, "insert", 1, store.ErrNotFound, 0},
		{"cancelled and put, after the insertion", true, false, "find", 2, nil, 0},
		{"put anew, before the insertion", false, true, "insert", 1, store.ErrNotFound, 0},
		{"replaced, before the insertion", false, false, "insert", 1, nil, 1},
		{"replaced, after the insertion", false, false, "find", 2, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			s := db.open(t)
			mustPut(t, s, newPut("k", epoch))
			relayed, r := db.relayed(t)
			happened := false
			collection := map[string]string{"insert": "occurrences", "find": "jobs"}[c.command]
			r.on(c.command, collection, c.n, func() verdict {
				happened = true
				if c.cancelled {
					if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
						t.Error(err)
					}
				}
				p := newPut("k", later)
				p.Anew = c.anew
				mustPut(t, s, p)
				return pass
			})
			if err := trigger(t, relayed); !errors.Is(err, c.want) || !happened {
				t.Errorf("trigger answers %v, want %v; put meanwhile: %v", err, c.want, happened)
			}
			if n := db.count(t, bson.M{}); n != c.left {
				t.Errorf("%d occurrences are left, want %d", n, c.left)
			}
		})
	}
}
