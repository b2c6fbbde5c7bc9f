//go:build services

package mongodb_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// expectMany makes a store find enough occurrences of the default lane that its next claim works by batch. It leaves
// none of them.
func expectMany(t *testing.T, s store.Store) {
	t.Helper()
	now := epoch.Add(-time.Hour)
	put := newPut("many", now, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	for i := range put.Job.Schedule.Instants {
		put.Job.Schedule.Instants[i] = now.Add(-time.Duration(i) * time.Second)
	}
	mustPut(t, s, begin(put.Job, now))
	for _, c := range mustClaim(t, s, now, 20) {
		mustSettle(t, s, c, store.Ack)
	}
	if _, err := s.Cancel(t.Context(), []job.Name{name("many")}, store.Asked{Now: now}); err != nil {
		t.Fatal(err)
	}
}

// interruptions are the points at which a claim of two occurrences may fail after it has stamped one, or may have.
// Claimed one by one, the second is left to the batch; otherwise the batch claims both.
var interruptions = []struct {
	name                string
	many                bool // expected
	command, collection string
	n                   int
	lost                verdict
}{
	{"while it takes the first", false, "findAndModify", "occurrences", 1, cutAfter},
	{"while it looks for more", false, "find", "occurrences", 1, cutBefore},
	{"while it reads the first's job", false, "find", "jobs", 1, cutBefore},
	{"while it stamps the second", false, "update", "occurrences", 1, cutAfter},
	{"while it stamps", true, "update", "occurrences", 1, cutAfter},
	{"while it reads back", true, "find", "occurrences", 3, cutBefore},
	{"while it reads the jobs", true, "find", "jobs", 1, cutBefore},
}

// TestClaimIsInterrupted: a claim that fails after it has stamped occurrences gives them back.
func TestClaimIsInterrupted(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range interruptions {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch, 0, time.Second))
			relayed, r := db.relayed(t)
			if c.many {
				expectMany(t, relayed)
			}
			r.on(c.command, c.collection, c.n, func() verdict { return c.lost })
			claim, err := relayed.Claim(t.Context(), claimParams(epoch.Add(time.Second), 10))
			if !errors.Is(err, store.ErrUnavailable) || len(claim.Occurrences) != 0 {
				t.Fatalf("claimed %d, %v", len(claim.Occurrences), err)
			}
			expectUntouched(t, s)
		})
	}
}

// expectUntouched expects two due occurrences that look as if they had never been claimed.
func expectUntouched(t *testing.T, s store.Store) {
	t.Helper()
	again := mustClaim(t, s, epoch.Add(time.Second), 10)
	if len(again) != 2 {
		t.Fatalf("%d are due, want 2", len(again))
	}
	for _, o := range again {
		if o.Attempt != 1 || o.Reclaimed {
			t.Errorf("attempt %d, reclaimed %v", o.Attempt, o.Reclaimed)
		}
	}
}

// TestClaimMeetsAFailover: occurrences that a claim stamped before the server went away are due as soon as it is back,
// not only at the lease's end. No other claim runs before they are given back.
func TestClaimMeetsAFailover(t *testing.T) {
	for _, c := range interruptions {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			s := db.open(t)
			mustPut(t, s, newPut("k", epoch, 0, time.Second))
			relayed, r := db.relayed(t)
			if c.many {
				expectMany(t, relayed)
			}
			r.on(c.command, c.collection, c.n, func() verdict {
				r.watch = func(command) verdict { return cutBefore } // the others, from now on; it is called with the lock held
				return c.lost
			})
			params := claimParams(epoch.Add(time.Second), 10)
			if _, err := relayed.Claim(t.Context(), params); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("claim answers %v", err)
			}
			soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := relayed.Claim(soon, params); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("while the server is away, claim answers %v", err)
			}
			r.set(nil)
			expectUntouched(t, relayed)
		})
	}
}

// TestCloseMeetsAFailover: closing a store while a claim is to be given back leaves no goroutine running, and the claim
// ends with its lease.
func TestCloseMeetsAFailover(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second))
	relayed, r := db.relayed(t)
	r.on("findAndModify", "occurrences", 1, func() verdict {
		r.watch = func(command) verdict { return cutBefore }
		return cutAfter
	})
	now := epoch.Add(time.Second)
	if _, err := relayed.Claim(t.Context(), claimParams(now, 10)); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("claim answers %v", err)
	}
	waiting := make(chan error)
	go func() {
		_, err := relayed.Claim(t.Context(), claimParams(now, 10))
		waiting <- err
	}()
	if err := relayed.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it may be ending
		stacks := make([]byte, 1<<20)
		if stacks = stacks[:runtime.Stack(stacks, true)]; !strings.Contains(string(stacks), "(*lost).giveBack.func") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("still running:\n%s", stacks)
		}
	}
	if err := <-waiting; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a claim of a store that is closed answers %v", err)
	}
	r.set(func(c command) verdict {
		t.Errorf("%s of %s after the store was closed", c.name, c.collection)
		return pass
	})
	if got := mustClaim(t, s, now, 10); len(got) != 1 {
		t.Errorf("%d are due, want 1", len(got))
	}
	if got := mustClaim(t, s, now.Add(lease), 10); len(got) != 2 || !got[0].Reclaimed {
		t.Errorf("%d are due at the lease's end, want 2 reclaimed", len(got))
	}
}

// TestClaimOfJobsMeetsAFailover does the same for a claim of jobs to expand.
func TestClaimOfJobsMeetsAFailover(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	oldCrontab(t, s)
	relayed, r := db.relayed(t)
	r.on("find", "jobs", 2, func() verdict {
		r.watch = func(command) verdict { return cutBefore }
		return cutBefore
	})
	if _, err := relayed.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: epoch, Lease: lease, Limit: 10}); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("claim answers %v", err)
	}
	r.set(nil)
	mustClaim(t, relayed, epoch.Add(-2*time.Hour), 1) // it waits
	mustExpand(t, s, epoch)
}

// TestClaimsCommands checks the commands, and so the round trips, of a claim, by the number of due occurrences and by
// the result of the last claim.
func TestClaimsCommands(t *testing.T) {
	batch := map[string]int{"find occurrences": 3, "update occurrences": 1, "find jobs": 1}
	none := map[string]int{"findAndModify occurrences": 1, "find occurrences": 2}
	tries := func(n int) map[string]int {
		return map[string]int{"findAndModify occurrences": n, "find occurrences": 2, "find jobs": 1}
	}
	both := func(n int) map[string]int { // two round trips, or three as for a batch
		return map[string]int{"findAndModify occurrences": n, "find occurrences": 3, "update occurrences": 1, "find jobs": 2}
	}
	for _, c := range []struct {
		name  string
		due   []int // for each claim
		limit int
		want  []map[string]int
	}{
		{"one", []int{1, 1, 1}, 10, []map[string]int{tries(1), tries(1), tries(1)}},
		{"none", []int{0, 1}, 10, []map[string]int{none, tries(1)}},
		{"no more than one is asked for", []int{9, 0, 0}, 1, []map[string]int{tries(1), tries(1), tries(1)}},
		{"a few", []int{3, 3, 4, 6, 1, 1, 1}, 10, []map[string]int{both(1), tries(3), both(3), both(4), batch, tries(3), tries(1)}},
		{"after many", []int{20, 4, 4, 1, 1, 1}, 100, []map[string]int{both(1), batch, batch, batch, tries(2), tries(1)}},
		{"no more than a few are asked for of many", []int{9, 0, 0}, 3, []map[string]int{both(1), tries(3), tries(3)}},
		{"more than come with an answer unless asked for", []int{300, 300}, 1000, []map[string]int{both(1), batch}},
		{"as many as can be", []int{20, 1000}, 1000, []map[string]int{both(1), batch}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			relayed, r := db.relayed(t)
			left := 0
			for i, due := range c.due {
				now := epoch.Add(time.Duration(i) * time.Hour)
				var instants []time.Duration
				for j := range due {
					instants = append(instants, time.Duration(j)*time.Millisecond)
				}
				if due > 0 {
					mustPut(t, relayed, newPut(fmt.Sprint("k", i), now, instants...))
				}
				left += due
				commands := make(map[string]int)
				r.set(func(c command) verdict {
					if c.name != "hello" {
						commands[c.name+" "+c.collection]++
					}
					return pass
				})
				now = now.Add(time.Minute)
				params := claimParams(now, c.limit)
				params.Lease = 1000 * time.Hour
				claim, err := relayed.Claim(t.Context(), params)
				r.set(nil)
				want := min(left, c.limit)
				if left -= want; err != nil || len(claim.Occurrences) != want {
					t.Fatalf("claim %d: %d, want %d (%v)", i, len(claim.Occurrences), want, err)
				}
				if more := claim.More(); more != (want == c.limit) {
					t.Errorf("claim %d of %d: more %v", i, want, more)
				}
				if !slices.IsSortedFunc(claim.Occurrences, func(a, b store.Claimed) int { return a.Timestamp.Compare(b.Timestamp) }) {
					t.Errorf("claim %d is not in the order of the instants", i)
				}
				if !maps.Equal(commands, c.want[i]) {
					t.Errorf("claim %d of %d took %v, want %v", i, want, commands, c.want[i])
				}
			}
		})
	}
}

// TestTriesMeetAnother: while this claim takes occurrences one by one, another claim takes some. Those stay the
// other's, and the reported remainder is exact.
func TestTriesMeetAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second, 2*time.Second, time.Hour))
	now := epoch.Add(time.Minute)
	relayed, r := db.relayed(t)
	var theirs []store.Claimed
	r.on("findAndModify", "occurrences", 1, func() verdict {
		theirs = mustClaim(t, s, now, 1)
		return pass
	})
	claim, err := relayed.Claim(t.Context(), claimParams(now, 1))
	if err != nil || len(claim.Occurrences) != 1 || claim.Occurrences[0].Timestamp != epoch.Add(time.Second) || theirs[0].Timestamp != epoch {
		t.Fatalf("claimed %v, %v", claim.Occurrences, err)
	}
	r.on("find", "occurrences", 1, func() verdict {
		mustPut(t, s, newPut("another", epoch, 3*time.Second))
		return pass
	})
	claim, err = relayed.Claim(t.Context(), claimParams(now, 10))
	if err != nil || len(claim.Occurrences) != 2 || claim.Quotas[0] != (store.QuotaLeft{Found: 2, Next: now.Add(lease)}) {
		t.Errorf("claimed %d, left %v, %v", len(claim.Occurrences), claim.Quotas, err)
	}
	for _, c := range claim.Occurrences {
		if c.Attempt != 1 || c.Reclaimed || !c.DueAt.Equal(now.Add(lease)) || !c.ScheduledAt.Equal(now) || c.Token == "" {
			t.Errorf("claimed %+v", c.Occurrence)
		}
		if n := db.count(t, bson.M{"_id": c.ID.String(), "token": c.Token, "attempt": 1, "dueAt": c.DueAt, "scheduledAt": now}); n != 1 {
			t.Errorf("%s is not as it was claimed", c.Timestamp)
		}
	}
	claim, err = relayed.Claim(t.Context(), claimParams(now, 10))
	if err != nil || len(claim.Occurrences) != 0 || claim.Quotas[0] != (store.QuotaLeft{Next: now.Add(lease)}) {
		t.Errorf("claimed %d, left %v, %v", len(claim.Occurrences), claim.Quotas, err)
	}
}

// TestReads: every read states its read concern and goes to the primary. An orphan is dropped only after a read with
// read concern majority.
func TestReads(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Hour))
	if _, err := db.Collection("jobs").DeleteOne(t.Context(), bson.M{"key": "k"}); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, newPut("other", epoch, 0))
	relayed, r := db.relayed(t)
	seen := make(map[string]int)
	r.set(func(c command) verdict {
		switch c.name {
		case "find", "aggregate", "count":
			level, _ := c.body.Lookup("readConcern", "level").StringValueOK()
			seen[level+" "+c.collection]++
		case "getMore":
			t.Error("a find took more than one answer")
		}
		if preference, err := c.body.LookupErr("$readPreference", "mode"); err == nil && !strings.HasPrefix(preference.StringValue(), "primary") {
			t.Errorf("%s of %s goes to the %s", c.name, c.collection, preference)
		}
		return pass
	})
	now := epoch.Add(2 * time.Hour)
	if got := mustClaim(t, relayed, now, 10); len(got) != 1 {
		t.Errorf("claimed %d, want 1", len(got))
	}
	if _, err := relayed.DueLanes(t.Context(), store.DueParams{Until: now, Limit: 10}); err != nil {
		t.Error(err)
	}
	if _, err := store.CountAll(t.Context(), relayed, now); err != nil {
		t.Error(err)
	}
	if _, err := store.ReadJob(t.Context(), relayed, name("other")); err != nil {
		t.Error(err)
	}
	mustPut(t, relayed, newPut("k", now, 0))
	r.set(nil)
	if seen["majority jobs"] != 1 || seen["local jobs"] == 0 || seen["local occurrences"] == 0 || len(seen) != 3 {
		t.Errorf("reads: %v", seen)
	}
	if n := db.count(t, bson.M{}); n != 2 {
		t.Errorf("%d are left, want 2: one that is held, and one that was put", n)
	}
}

// TestOrphanOfADeposedServer: an occurrence is not dropped if a majority has its job, whatever one server has answered.
func TestOrphanOfADeposedServer(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer verdict // to the majority's read
	}{
		{"a majority knows better", pass},
		{"no majority answers", cutBefore},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			s := db.open(t)
			mustPut(t, s, newPut("k", epoch, 0))
			relayed, r := db.relayed(t)
			r.answer = bson.D{
				{Key: "cursor", Value: bson.D{
					{Key: "firstBatch", Value: bson.A{}}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: db.Name() + ".jobs"},
				}},
				{Key: "ok", Value: 1},
			}
			r.set(func(seen command) verdict {
				switch level, _ := seen.body.Lookup("readConcern", "level").StringValueOK(); {
				case seen.name != "find" || seen.collection != "jobs":
					return pass
				case level == "majority":
					return c.answer
				default:
					return answerBefore
				}
			})
			now := epoch.Add(2 * time.Hour)
			if got := mustClaim(t, relayed, now, 10); len(got) != 0 {
				t.Fatalf("claimed %d apparent orphans", len(got))
			}
			r.set(nil)
			if got := mustClaim(t, s, now.Add(lease), 10); len(got) != 1 {
				t.Errorf("%d are due at the lease's end, want 1", len(got))
			}
		})
	}
}
