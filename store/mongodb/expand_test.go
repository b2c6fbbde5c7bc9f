//go:build services

package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func mustClaimJobs(t *testing.T, s store.Store, now time.Time) store.ClaimedJobs {
	t.Helper()
	claimed, err := s.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: now, Lease: lease, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	return claimed
}

// mustExpand claims the one job that is to be expanded, and returns its advance.
func mustExpand(t *testing.T, s store.Store, now time.Time) store.Advance {
	t.Helper()
	claimed := mustClaimJobs(t, s, now)
	if len(claimed.Jobs) != 1 {
		t.Fatalf("%d jobs are to be expanded, want 1", len(claimed.Jobs))
	}
	j := claimed.Jobs[0]
	x, err := j.Expand(now, expansion)
	if err != nil {
		t.Fatal(err)
	}
	return store.Advance{
		Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: claimed.Token,
		Occurrences: x.Occurrences, Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed,
	}
}

func mustAdvance(t *testing.T, s store.Store, a store.Advance) {
	t.Helper()
	if err := s.Advance(t.Context(), []store.Advance{a}); err != nil {
		t.Fatal(err)
	}
}

// fire delivers all claimable occurrences at now, counts their instants in fired, and returns their number.
func fire(t *testing.T, s store.Store, now time.Time, fired map[time.Time]int) (n int) {
	t.Helper()
	for {
		claim, err := s.Claim(t.Context(), claimParams(now, 100))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claim.Occurrences {
			fired[c.Timestamp]++
			mustSettle(t, s, c, store.Ack)
		}
		n += len(claim.Occurrences)
		if !claim.More() {
			return n
		}
	}
}

// ticks counts each instant of some occurrences once.
func ticks(parts ...[]job.Occurrence) map[time.Time]int {
	all := make(map[time.Time]int)
	for _, occurrences := range parts {
		for _, o := range occurrences {
			all[o.Timestamp] = 1
		}
	}
	return all
}

// oldCrontab puts a job that fires every second, five hours before the epoch, and delivers its first occurrences. So
// the job is to be expanded, and its revision is so old that its orphans are dropped.
func oldCrontab(t *testing.T, s store.Store) store.Put {
	t.Helper()
	p := newCrontab("k", epoch.Add(-5*time.Hour), "@every 1s")
	mustPut(t, s, p)
	if n := fire(t, s, epoch, map[time.Time]int{}); n != len(p.Occurrences) {
		t.Fatalf("%d were delivered at first, want %d", n, len(p.Occurrences))
	}
	return p
}

// TestAdvanceIsInterrupted: an expansion is interrupted anywhere, and either the same replica tries again or another
// takes over. It fires nothing beyond the cursor, nothing is dropped, and every tick fires exactly once in the end.
func TestAdvanceIsInterrupted(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range []struct {
		name, command, collection string
		lost                      verdict
		inserted, moved           bool // inserted: and no longer staged
	}{
		{"before the occurrences", "insert", "occurrences", cutBefore, false, false},
		{"after the occurrences", "insert", "occurrences", cutAfter, false, false},
		{"before they count", "update", "occurrences", cutBefore, false, false},
		{"after they count", "update", "occurrences", cutAfter, true, false},
		{"before the cursor", "update", "jobs", cutBefore, true, false},
		{"after the cursor", "update", "jobs", cutAfter, true, true},
	} {
		for _, takenOver := range []bool{false, true} {
			t.Run(map[bool]string{false: "tried again, ", true: "taken over, "}[takenOver]+c.name, func(t *testing.T) {
				db.empty(t, s)
				p := oldCrontab(t, s)
				relayed, r := db.relayed(t)
				a := mustExpand(t, relayed, epoch)
				r.on(c.command, c.collection, 1, func() verdict { return c.lost })
				if err := relayed.Advance(t.Context(), []store.Advance{a}); !errors.Is(err, store.ErrUnavailable) {
					t.Fatalf("advance answers %v", err)
				}

				want := 0
				if c.inserted {
					want = len(a.Occurrences)
				}
				if n := db.count(t, bson.M{"revision": p.Job.Revision}); n != want {
					t.Errorf("%d occurrences were inserted, want %d", n, want)
				}
				fired := make(map[time.Time]int)
				now := epoch.Add(30 * time.Second)
				if n := fire(t, s, now, fired); n != 0 && !c.moved || n != len(a.Occurrences) && c.moved {
					t.Errorf("%d fired, moved %v", n, c.moved)
				}
				if !c.moved {
					back := bson.M{
						"revision": p.Job.Revision, "dueAt": store.PutBackUnexpanded(store.ClaimParams{Now: now}), "attempt": 0,
						"token": bson.M{"$exists": false}, "scheduledAt": bson.M{"$exists": false},
					}
					if n := db.count(t, back); n != want {
						t.Errorf("%d are put back, want %d", n, want)
					}
				}

				second := a
				if takenOver {
					now = now.Add(lease)
					second = mustExpand(t, s, now)
				}
				mustAdvance(t, s, second)
				wanted := ticks(second.Occurrences)
				if c.inserted {
					wanted = ticks(a.Occurrences, second.Occurrences)
				}
				fire(t, s, now.Add(time.Hour), fired)
				if !maps.Equal(fired, wanted) {
					t.Errorf("fired %v, want once each of %v", fired, slices.Collect(maps.Keys(wanted)))
				}
				mustAdvance(t, s, second)
				if n := db.count(t, bson.M{"staged": nil}); n != 0 {
					t.Errorf("once more, it has inserted %d", n)
				}
			})
		}
	}
}

// TestAdvanceMeetsAnother: a change of a job while its next occurrences are inserted decides whether they fire.
func TestAdvanceMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	now := epoch.Add(10 * time.Second)
	for _, c := range []struct {
		name    string
		do      func(t *testing.T, s store.Store)
		unmoved bool // the cursor is
		gone    bool // the revision is
	}{
		{"a cancel", func(t *testing.T, s store.Store) {
			if _, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now}); err != nil {
				t.Error(err)
			}
		}, false, true},
		{"a put", func(t *testing.T, s store.Store) { mustPut(t, s, newPut("k", now, time.Hour)) }, false, true},
		{"a pause", func(t *testing.T, s store.Store) { pause(t, s, now) }, true, false},
		{"a pause and a resume", func(t *testing.T, s store.Store) {
			pause(t, s, now)
			resume(t, s, now)
		}, true, false},
		{"another's claim", func(t *testing.T, s store.Store) { mustExpand(t, s, epoch.Add(lease)) }, true, false},
	} {
		for _, write := range []struct{ name, collection string }{{"insert", "occurrences"}, {"update", "jobs"}} {
			t.Run(fmt.Sprintf("%s before the %s of %s", c.name, write.name, write.collection), func(t *testing.T) {
				db.empty(t, s)
				oldCrontab(t, s)
				relayed, r := db.relayed(t)
				a := mustExpand(t, relayed, epoch)
				happened := false
				r.on(write.name, write.collection, 1, func() verdict {
					happened = true
					c.do(t, s)
					return pass
				})
				mustAdvance(t, relayed, a)
				if !happened {
					t.Fatal("nothing happened meanwhile: the test shows nothing")
				}
				status, err := store.ReadJob(t.Context(), s, name("k"))
				if unmoved := err == nil && status.Cursor.Equal(a.From); unmoved != c.unmoved {
					t.Errorf("the cursor is %s, %v", status.Cursor, err)
				}
				if n := fire(t, s, epoch.Add(30*time.Second), map[time.Time]int{}); n != 0 {
					t.Errorf("%d of the expansion fired", n)
				}
				left := len(a.Occurrences)
				if c.gone {
					left = 0 // deleted with their revision, or dropped by the claim
				}
				if n := db.count(t, bson.M{"revision": a.Revision}); n != left {
					t.Errorf("%d are left, want %d", n, left)
				}
			})
		}
	}
}

// TestAdvanceComesLate: an expansion that another has taken over since its claim was checked undoes nothing.
func TestAdvanceComesLate(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	relayed, r := db.relayed(t)
	late := mustExpand(t, relayed, epoch)
	var theirs store.Advance
	r.on("update", "jobs", 1, func() verdict {
		advances := []store.Advance{mustExpand(t, s, epoch.Add(lease))}
		if err := s.Advance(t.Context(), advances); err != nil {
			t.Error(err)
		}
		theirs = advances[0]
		return pass
	})
	mustAdvance(t, relayed, late)
	status, err := store.ReadJob(t.Context(), s, name("k"))
	if err != nil {
		t.Fatal(err)
	}
	missed := theirs.Missed - theirs.Left
	if !status.Cursor.Equal(theirs.Cursor) || !status.ExpandAt.Equal(theirs.ExpandAt) || status.Missed != missed {
		t.Errorf("the job has cursor %s, expandAt %s and %d missed, want %s, %s and %d",
			status.Cursor, status.ExpandAt, status.Missed, theirs.Cursor, theirs.ExpandAt, missed)
	}
	if theirs.Left != len(late.Occurrences) {
		t.Errorf("%d instants are left, want the %d of the expansion that came late", theirs.Left, len(late.Occurrences))
	}
}

// TestAdvanceEndsEarlier: an expansion by a replica with a shorter lease ends before one that was cut off. Only what that
// had inserted up to the new cursor was left behind; the rest is beyond the cursor.
func TestAdvanceEndsEarlier(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	relayed, r := db.relayed(t)
	cutOff := mustExpand(t, relayed, epoch)
	r.on("update", "jobs", 1, func() verdict { return cutBefore })
	if err := relayed.Advance(t.Context(), []store.Advance{cutOff}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("advance answers %v", err)
	}
	shorter := mustExpand(t, s, epoch.Add(lease))
	shorter.Cursor = cutOff.Occurrences[len(cutOff.Occurrences)/2].Timestamp
	shorter.Occurrences = slices.DeleteFunc(shorter.Occurrences, func(o job.Occurrence) bool { return o.Timestamp.After(shorter.Cursor) })
	left, beyond := 0, 0
	for _, o := range cutOff.Occurrences {
		switch {
		case o.Timestamp.After(shorter.Cursor):
			beyond++
		case ticks(shorter.Occurrences)[o.Timestamp] == 0:
			left++
		}
	}
	if left == 0 || beyond == 0 || left+beyond > shorter.Missed {
		t.Fatalf("%d are left and %d beyond, of %d: the test shows nothing", left, beyond, shorter.Missed)
	}
	advances := []store.Advance{shorter}
	if err := s.Advance(t.Context(), advances); err != nil || advances[0].Left != left {
		t.Errorf("%d are left, want %d; %v", advances[0].Left, left, err)
	}
}

// TestAdvanceLimitsItsWrites: the server gets the remaining time as the limit for the writes of an expansion, so that
// none is late.
func TestAdvanceLimitsItsWrites(t *testing.T) {
	const within = time.Minute
	relayed, r := newDatabase(t).relayed(t)
	oldCrontab(t, relayed)
	a := mustExpand(t, relayed, epoch)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	limits := make(map[string]time.Duration)
	r.set(func(c command) verdict {
		ms, _ := c.body.Lookup("maxTimeMS").AsInt64OK()
		limits[c.name+" "+c.collection] = time.Duration(ms) * time.Millisecond
		return pass
	})
	if err := relayed.Advance(ctx, []store.Advance{a}); err != nil {
		t.Fatal(err)
	}
	r.set(nil)
	for _, write := range []string{"insert occurrences", "update jobs"} {
		if limit := limits[write]; limit <= 0 || limit > within {
			t.Errorf("the limit of %s is %s", write, limit)
		}
	}
}

// TestClaimJobsIsInterrupted: a claim of jobs that fails after it has stamped jobs gives them back.
func TestClaimJobsIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		name, command string
		n             int
		lost          verdict
	}{
		{"while it stamps", "update", 1, cutAfter},
		{"while it reads back", "find", 2, cutBefore},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			s := db.open(t)
			oldCrontab(t, s)
			relayed, r := db.relayed(t)
			r.on(c.command, "jobs", c.n, func() verdict { return c.lost })
			claimed, err := relayed.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: epoch, Lease: lease, Limit: 10})
			if !errors.Is(err, store.ErrUnavailable) || len(claimed.Jobs) != 0 {
				t.Fatalf("claimed %d, %v", len(claimed.Jobs), err)
			}
			mustAdvance(t, s, mustExpand(t, s, epoch))
		})
	}
}

// TestClaimJobsMeetsAnother: a job that another replica claims between a claim's find and its stamp belongs to the
// other.
func TestClaimJobsMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	relayed, r := db.relayed(t)
	var theirs store.Advance
	r.on("update", "jobs", 1, func() verdict {
		theirs = mustExpand(t, s, epoch)
		return pass
	})
	if claimed := mustClaimJobs(t, relayed, epoch); len(claimed.Jobs) != 0 || !claimed.More {
		t.Errorf("claimed %d, more %v", len(claimed.Jobs), claimed.More)
	}
	mustAdvance(t, s, theirs)
	if status, err := store.ReadJob(t.Context(), s, name("k")); err != nil || !status.Cursor.Equal(theirs.Cursor) {
		t.Errorf("the cursor is %s, want %s, %v", status.Cursor, theirs.Cursor, err)
	}
}

// A job that can't be read does not keep others from being expanded.
func TestUnreadableSchedule(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, key := range []string{"bad", "good"} {
		mustPut(t, s, newCrontab(key, epoch, "@every 1s"))
	}
	_, err := db.Collection("jobs").UpdateOne(t.Context(), bson.M{"key": "bad"}, bson.M{"$set": bson.M{"schedule": []byte("nonsense")}})
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := s.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: epoch.Add(time.Minute), Lease: time.Minute, Limit: 10})
	if err != nil || len(claimed.Jobs) != 1 || claimed.Jobs[0].Key != "good" || len(claimed.Unreadable) != 1 || claimed.Unreadable[0].Key != "bad" {
		t.Errorf("claimed %+v, %v", claimed, err)
	}
}
