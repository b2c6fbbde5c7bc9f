//go:build services

package mongodb_test

import (
	"maps"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestEarlyClaimMeetsAResume: an early claim puts back an occurrence of a job that is no longer paused. The occurrence
// is due at its instant.
func TestEarlyClaimMeetsAResume(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	const early = 500 * time.Millisecond
	at := epoch.Add(time.Minute)
	for _, c := range []struct {
		name, command, collection string
		n                         int
	}{
		{"before it is put back", "update", "occurrences", 2},
		{"after it is put back", "find", "occurrences", 4},
		{"before the job is read again", "find", "jobs", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch, time.Minute))
			pause(t, s, epoch)
			relayed, r := db.relayed(t)
			expectMany(t, relayed)
			happened := false
			r.on(c.command, c.collection, c.n, func() verdict {
				happened = true
				resume(t, s, at.Add(-50*time.Millisecond))
				return pass
			})
			params := claimParams(at.Add(-100*time.Millisecond), 10)
			params.Early = early
			claim, err := relayed.Claim(t.Context(), params)
			if err != nil || len(claim.Occurrences) != 0 || !happened {
				t.Fatalf("claimed %d, %v; resumed meanwhile: %v", len(claim.Occurrences), err, happened)
			}
			page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.AddDate(100, 0, 0), Limit: 1000})
			if lanes := page.Lanes; err != nil || len(lanes) != 1 || !lanes[0].DueAt.Equal(at) {
				t.Errorf("due %v, %v", lanes, err)
			}
			expectDue(t, s, at, 1)
		})
	}
}

// TestPassMeetsAnother: a claim of one occurrence passes a paused backlog. It does not undo a change that another
// caller makes to the backlog before it is put back.
func TestPassMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	now := epoch.Add(time.Minute)
	for _, c := range []struct {
		name    string
		do      func(t *testing.T, s store.Store) []store.Claimed // returns the claims that are still held
		due     int                                               // afterwards
		pending int
	}{
		{"nobody", func(*testing.T, store.Store) []store.Claimed { return nil }, 0, 3},
		{"a resume", func(t *testing.T, s store.Store) []store.Claimed {
			resume(t, s, now)
			return nil
		}, 3, 3},
		{"a resume and a claim", func(t *testing.T, s store.Store) []store.Claimed {
			resume(t, s, now)
			return mustClaim(t, s, now, 10)
		}, 0, 3},
		{"a resume, a claim and a retry", func(t *testing.T, s store.Store) []store.Claimed {
			resume(t, s, now)
			for _, held := range mustClaim(t, s, now, 10) {
				retried := settlement(held, store.Retry)
				retried.DueAt = now.Add(time.Hour)
				if err := s.Settle(t.Context(), []store.Settlement{retried}); err != nil {
					t.Error(err)
				}
			}
			return nil
		}, 0, 3},
		{"a resume and an ack", func(t *testing.T, s store.Store) []store.Claimed {
			resume(t, s, now)
			for _, held := range mustClaim(t, s, now, 10) {
				mustSettle(t, s, held, store.Ack)
			}
			return nil
		}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch, 0, time.Second, time.Minute))
			pause(t, s, epoch)
			relayed, r := db.relayed(t)
			var held []store.Claimed
			happened := false
			r.on("update", "occurrences", 2, func() verdict { // after the claimed one is put back
				happened = true
				held = c.do(t, s)
				return pass
			})
			claim, err := relayed.Claim(t.Context(), claimParams(now, 1))
			r.set(nil)
			if err != nil || len(claim.Occurrences) != 0 || !claim.More() || !happened {
				t.Fatalf("claimed %d, more %v, %v; passed: %v", len(claim.Occurrences), claim.More(), err, happened)
			}
			for _, h := range held {
				if n := db.count(t, bson.M{"_id": h.ID.String(), "token": h.Token, "attempt": 1, "dueAt": h.DueAt}); n != 1 {
					t.Errorf("%s is no longer theirs", h.Timestamp)
				}
			}
			expectDue(t, s, now, c.due)
			if n := db.count(t, bson.M{}); n != c.pending {
				t.Errorf("%d are left, want %d", n, c.pending)
			}
		})
	}
}

// TestPassOfLanes: a claim passes the paused backlog of each of its lanes, and leaves other lanes alone.
func TestPassOfLanes(t *testing.T) {
	now := epoch.Add(time.Minute)
	db := newDatabase(t)
	s := db.open(t)
	params := store.ClaimParams{Now: now, Lease: lease}
	for _, tenant := range []string{"free", "one", "two", "other"} {
		p := newPut("k", epoch, 0, time.Second, 2*time.Second, 3*time.Second)
		p.Job.Tenant = tenant
		mustPut(t, s, begin(p.Job, epoch))
		if tenant != "free" {
			if err := s.Pause(t.Context(), p.Job.Name, job.NewRevision(epoch), epoch); err != nil {
				t.Fatal(err)
			}
		}
		if tenant != "other" {
			params.Quotas = append(params.Quotas, store.Quota{Lane: job.Lane{Tenant: tenant}, Limit: 1})
		}
	}
	claim, err := s.Claim(t.Context(), params)
	if err != nil || len(claim.Occurrences) != 1 || claim.Occurrences[0].Name.Tenant != "free" {
		t.Fatalf("claimed %d, %v", len(claim.Occurrences), err)
	}
	for tenant, want := range map[string]int{"free": 3, "one": 0, "two": 0, "other": 4} {
		if n := db.count(t, bson.M{"tenant": tenant, "dueAt": bson.M{"$lte": now}}); n != want {
			t.Errorf("%d of %s are still due, want %d", n, tenant, want)
		}
	}
}

// TestPassKeepsAttempts: occurrences that a claim of one puts back from a paused backlog keep their state: unclaimed,
// with the attempts of stale claims.
func TestPassKeepsAttempts(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second, 2*time.Second, 3*time.Second))
	stale := mustClaim(t, s, epoch.Add(time.Second), 10)
	pause(t, s, epoch.Add(time.Second))
	now := epoch.Add(lease + time.Second)
	if got := mustClaim(t, s, now, 1); len(got) != 0 {
		t.Fatalf("claimed %d of a paused job", len(got))
	}
	for attempt, want := range []int{2, 2} {
		back := bson.M{"attempt": attempt, "token": bson.M{"$exists": false}, "scheduledAt": bson.M{"$exists": false}, "dueAt": bson.M{"$gt": now}}
		if n := db.count(t, back); n != want {
			t.Errorf("%d are put back with attempt %d, want %d", n, attempt, want)
		}
	}
	for _, held := range stale {
		mustSettle(t, s, held, store.Ack)
	}
	if n := db.count(t, bson.M{}); n != 4 {
		t.Errorf("%d are left after stale acks, want 4", n)
	}
}

// TestExpansionOutlivesAPause: a pause and a resume cut off an expansion. While it may still insert, no other expansion
// of the job begins. Otherwise it could insert again the occurrences that another expansion inserted and that were
// delivered.
func TestExpansionOutlivesAPause(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	now := epoch.Add(2 * time.Second)
	for _, c := range []struct {
		name string
		do   func(t *testing.T, s store.Store)
	}{
		{"once", func(t *testing.T, s store.Store) {
			pause(t, s, now)
			resume(t, s, now)
		}},
		{"twice", func(t *testing.T, s store.Store) {
			for range 2 {
				pause(t, s, now)
				resume(t, s, now)
			}
		}},
		{"and an amendment", func(t *testing.T, s store.Store) {
			pause(t, s, now)
			if err := s.Amend(t.Context(), amendment(status(t, s).Version)); err != nil {
				t.Error(err)
			}
			resume(t, s, now)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			oldCrontab(t, s)
			relayed, r := db.relayed(t)
			cutOff := mustExpand(t, relayed, epoch)
			fired := make(map[time.Time]int)
			happened := false
			r.on("insert", "occurrences", 1, func() verdict {
				happened = true
				c.do(t, s)
				if len(mustClaimJobs(t, s, epoch.Add(lease-1)).Jobs) > 0 {
					t.Error("another expands before the lease has ended")
				}
				fire(t, s, now, fired)
				return pass
			})
			mustAdvance(t, relayed, cutOff)
			if !happened {
				t.Fatal("nothing happened meanwhile: the test shows nothing")
			}
			second := mustExpand(t, s, epoch.Add(lease))
			mustAdvance(t, s, second)
			fire(t, s, epoch.Add(time.Hour), fired)
			if want := ticks(cutOff.Occurrences, second.Occurrences); !maps.Equal(fired, want) {
				t.Errorf("fired %v, want once each of %v", fired, want)
			}

			// After the next advance, or a new put, a resume works as usual.
			now := epoch.Add(2 * lease)
			third := mustExpand(t, s, now)
			mustAdvance(t, s, third)
			pause(t, s, now)
			resume(t, s, now)
			mustExpand(t, s, now)
			pause(t, s, now)
			mustPut(t, s, newCrontab("k", now, "@every 1s"))
			resume(t, s, now)
			mustExpand(t, s, now)
		})
	}
}

// TestClaimJobsGivesBackItsLease: a failed claim of jobs does not keep others from expanding after a pause.
func TestClaimJobsGivesBackItsLease(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	relayed, r := db.relayed(t)
	r.on("find", "jobs", 2, func() verdict { return cutBefore })
	if _, err := relayed.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: epoch, Lease: lease, Limit: 10}); err == nil {
		t.Fatal("the claim succeeded: the test shows nothing")
	}
	pause(t, s, epoch)
	resume(t, s, epoch)
	mustExpand(t, s, epoch)
}

// TestResumeMeetsAPut: a put carries an occurrence over while a resume or a claim is about to bring it forward. It is
// due at once all the same.
func TestResumeMeetsAPut(t *testing.T) {
	now := epoch.Add(time.Minute)
	replaced := func(t *testing.T, s store.Store, first store.Put) {
		second := carrying(first, newJob(now, 0, time.Hour))
		status, err := store.ReadJob(t.Context(), s, name("k"))
		if err != nil {
			t.Error(err)
		}
		second.From.Version = status.Version
		mustPut(t, s, second)
	}
	t.Run("after the job is resumed", func(t *testing.T) {
		db := newDatabase(t)
		s := db.open(t)
		first := newJob(epoch, 0)
		mustPut(t, s, first)
		pause(t, s, epoch)
		if claimed := mustClaim(t, s, now, 10); len(claimed) != 0 {
			t.Fatalf("claimed %d of a paused job", len(claimed))
		}
		relayed, r := db.relayed(t)
		happened := false
		r.on("update", "occurrences", 1, func() verdict {
			happened = true
			replaced(t, s, first)
			return pass
		})
		if err := relayed.Resume(t.Context(), name("k"), job.NewRevision(now), now); err != nil || !happened {
			t.Fatalf("resume answers %v; replaced meanwhile: %v", err, happened)
		}
		expectDue(t, s, now, 1)
	})
	t.Run("while a claim holds the occurrence", func(t *testing.T) {
		db := newDatabase(t)
		s := db.open(t)
		first := newJob(epoch, 0)
		mustPut(t, s, first)
		pause(t, s, epoch)
		relayed, r := db.relayed(t)
		happened := false
		r.on("update", "occurrences", 1, func() verdict { // the claim puts it back
			happened = true
			resume(t, s, now)
			replaced(t, s, first)
			return pass
		})
		claim, err := relayed.Claim(t.Context(), claimParams(now, 10))
		if err != nil || len(claim.Occurrences) != 0 || !happened {
			t.Fatalf("claimed %d, %v; replaced meanwhile: %v", len(claim.Occurrences), err, happened)
		}
		expectDue(t, s, now, 1)
	})
}
