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

// TestTriggerMeetsACancel: a trigger during a cancellation of its job is cancelled with the job, or returns
// ErrNotFound.
func TestTriggerMeetsACancel(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	cancel := func(t *testing.T, s store.Store) {
		t.Helper()
		if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch}); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		name                string
		command, collection string
		n                   int
		want                error
	}{
		{"before the insertion", "insert", "occurrences", 1, store.ErrNotFound},
		{"before the job is looked at again", "find", "jobs", 2, store.ErrNotFound},
		{"before it counts", "update", "occurrences", 1, store.ErrNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch))
			relayed, r := db.relayed(t)
			r.on(c.command, c.collection, c.n, func() verdict {
				if claimed := mustClaim(t, s, epoch, 10); len(claimed) != 0 {
					t.Errorf("%d were claimed before it counts", len(claimed))
				}
				cancel(t, s)
				return pass
			})
			if err := trigger(t, relayed); !errors.Is(err, c.want) {
				t.Errorf("trigger answers %v, want %v", err, c.want)
			}
			if n := db.count(t, bson.M{}); n != 0 {
				t.Errorf("%d occurrences are left", n)
			}
		})
	}
}

// TestCancelMeetsATrigger: a trigger between the steps of a cancellation returns ErrNotFound, or is cancelled.
func TestCancelMeetsATrigger(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range []struct {
		name                string
		command, collection string
		n                   int
		cancelled           int
		want                error
	}{
		{"before the job is deleted", "delete", "jobs", 1, 1, nil},
		{"after the job is deleted", "find", "occurrences", 1, 0, store.ErrNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch))
			relayed, r := db.relayed(t)
			r.on(c.command, c.collection, c.n, func() verdict {
				if err := trigger(t, s); !errors.Is(err, c.want) {
					t.Errorf("trigger answers %v, want %v", err, c.want)
				}
				return pass
			})
			results, err := relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
			if want := (store.CancelResult{Found: true, Cancelled: c.cancelled}); err != nil || results[0] != want {
				t.Errorf("cancel answers %+v, %v, want %+v", results, err, want)
			}
			if n := db.count(t, bson.M{}); n != 0 {
				t.Errorf("%d occurrences are left", n)
			}
		})
	}
}

// TestTriggerMeetsANewJob: a trigger of a job that is concurrently cancelled and put again does not belong to the new
// job. A trigger of a job that is replaced does.
func TestTriggerMeetsANewJob(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	later := epoch.Add(time.Millisecond)
	for _, c := range []struct {
		name                  string
		cancelled, startsOver bool
		command               string
		n                     int
		want                  error
		left                  int
	}{
		{"cancelled and put, before the insertion", true, false, "insert", 1, store.ErrNotFound, 0},
		{"cancelled and put, after the insertion", true, false, "find", 2, store.ErrNotFound, 0},
		{"put anew, before the insertion", false, true, "insert", 1, store.ErrNotFound, 0},
		{"replaced, before the insertion", false, false, "insert", 1, nil, 1},
		{"replaced, after the insertion", false, false, "find", 2, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
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
				p.StartsOver = c.startsOver
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
