//go:build services

package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// isWrite reports whether a command writes documents of clients' requests.
func isWrite(c command) bool {
	return (c.name == "insert" || c.name == "update" || c.name == "delete") && c.collection != "meta"
}

// TestLateCommands: if any write of a mutation is delayed until the mutation's deadline has passed, it changes nothing
// when it arrives, long after the client has gone.
func TestLateCommands(t *testing.T) {
	t.Parallel()
	const within = 8 * time.Second
	for n := 1; n <= 6; n++ { // no mutation makes more kinds of writes
		t.Run(fmt.Sprintf("write %d", n), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			s := db.open(t)
			var group sync.WaitGroup
			var relays []*relay
			for _, m := range storetest.Mutations(t, s, "") {
				relayed, r := db.relayed(t)
				left, held := n, false
				r.set(func(c command) verdict {
					if !isWrite(c) || held {
						return pass
					}
					if left--; left > 0 {
						return pass
					}
					held = true
					return hold
				})
				relays = append(relays, r)
				group.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), within)
					defer cancel()
					err := m.Do(ctx, relayed)
					r.mu.Lock()
					defer r.mu.Unlock()
					if held && n == 1 && !errors.Is(err, store.ErrUnavailable) {
						t.Errorf("%s answers %v though its first write was held up", m.Name, err)
					}
					if !held && n == 1 && err == nil {
						t.Errorf("%s has no write: the test shows nothing", m.Name)
					}
				})
			}
			over := time.Now().Add(within)
			group.Wait()
			time.Sleep(time.Until(over))
			before := storetest.Contents(t, s)
			for _, r := range relays {
				r.deliver()
			}
			storetest.Unchanged(t, "late", before, storetest.Contents(t, s))
		})
	}
}

// TestCancelMeetsAStub: after a cancellation that finds no job, a put that was under way when it lost its replica
// creates none.
func TestCancelMeetsAStub(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	relayed, r := db.relayed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.on("update", "jobs", 1, func() verdict {
		cancel() // the replica is gone
		return hold
	})
	err := relayed.Put(ctx, []store.Put{newPut("k", epoch, time.Hour)})[0].Err
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotDone) {
		t.Errorf("put answers %v", err)
	}
	jobs, err := s.Jobs(t.Context(), store.JobFilter{Tenant: job.DefaultTenant, Limit: 10})
	if len(jobs) != 0 || err != nil {
		t.Errorf("a stub is listed: %v, %v", jobs, err)
	}
	if _, err := store.ReadJob(t.Context(), s, name("k")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a stub is read: %v", err)
	}
	for what, err := range map[string]error{
		"pause":   s.Pause(t.Context(), name("k"), job.NewRevision(epoch), epoch),
		"resume":  s.Resume(t.Context(), name("k"), job.NewRevision(epoch), epoch),
		"trigger": trigger(t, s),
	} {
		if !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s of a stub answers %v", what, err)
		}
	}
	if records := storetest.Contents(t, s); len(records) != 0 {
		t.Errorf("exported %d", len(records))
	}
	results, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
	if err != nil || results[0] != (store.CancelResult{}) {
		t.Errorf("cancel answers %+v, %v", results, err)
	}
	r.deliver()
	if _, err := store.ReadJob(t.Context(), s, name("k")); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the job was created after it was cancelled: %v", err)
	}
}

// TestLateIsTriedAgain: a store whose estimate of the server's time is wrong, because of an old answer, reads the clock
// again and succeeds.
func TestLateIsTriedAgain(t *testing.T) {
	db := newDatabase(t)
	relayed, r := db.relayed(t)
	hellos := 0
	r.answer = bson.D{{Key: "ok", Value: 1}, {Key: "localTime", Value: time.Now().Add(-time.Hour)}}
	r.set(func(c command) verdict {
		if c.name == "hello" {
			if hellos++; hellos == 1 {
				return answerBefore
			}
		}
		return pass
	})
	if _, err := relayed.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustPut(t, relayed, newPut("k", epoch, time.Hour))
	pause(t, relayed, epoch)
	if hellos < 2 {
		t.Errorf("the server was asked for its time %d times", hellos)
	}
}

// TestSweepUnfinished: the remains of interrupted calls are swept once no call can use them any more.
func TestSweepUnfinished(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	relayed, r := db.relayed(t)
	r.on("update", "jobs", 1, func() verdict { return cutBefore })
	if result := relayed.Put(t.Context(), []store.Put{newPut("stub", epoch)})[0]; result.Err == nil {
		t.Error("a put that was cut off answers nothing")
	}
	mustPut(t, s, newPut("k", epoch.Add(24*time.Hour), time.Hour))
	relayed, r = db.relayed(t)
	r.on("update", "occurrences", 1, func() verdict { return cutBefore })
	if err := trigger(t, relayed); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("trigger answers %v", err)
	}
	staged := bson.M{"staged": bson.M{"$exists": true}}
	if b, err := store.CountAll(t.Context(), s, epoch); err != nil || b.Pending != 1 || b.DeadLetters != 0 || db.count(t, staged) != 1 {
		t.Errorf("the backlog is %+v, %v, and %d are staged", b, err, db.count(t, staged))
	}
	for _, c := range []struct {
		now          time.Time
		stagedBefore time.Duration
		stubs        int
		staged       int
	}{
		{epoch.Add(59 * time.Minute), 0, 1, 1},
		{epoch.Add(time.Hour), 50 * time.Minute, 0, 1},
		{epoch.Add(time.Hour), 70 * time.Minute, 0, 0},
	} {
		if _, err := db.Collection("occurrences").UpdateMany(t.Context(), staged,
			bson.M{"$set": bson.M{"staged": time.Now().Add(-c.stagedBefore)}}); err != nil {
			t.Fatal(err)
		}
		swept, err := s.Sweep(t.Context(), store.SweepParams{Now: c.now, Again: time.Hour, FailedBefore: c.now, Limit: 10})
		if err != nil || swept.Jobs != 0 {
			t.Errorf("swept %+v, %v", swept, err)
		}
		stubs, err := db.Collection("jobs").CountDocuments(t.Context(), bson.M{"version": ""})
		if n := db.count(t, staged); int(stubs) != c.stubs || n != c.staged || err != nil {
			t.Errorf("%d stubs and %d staged are left, want %d and %d", stubs, n, c.stubs, c.staged)
		}
	}
}
