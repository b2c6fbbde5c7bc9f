//go:build services

package mongodb_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestClaimMeetsAnother: another replica claims an occurrence between this claim's find and its stamp. The occurrence
// is the other's; more may be due in its lane, but not in other lanes.
func TestClaimMeetsAnother(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, 0, time.Second, 2*time.Second))
	high := newPut("high", epoch)
	high.Job.Options.Priority = job.PriorityHigh
	high.Job.Schedule.Instants = []time.Time{epoch}
	mustPut(t, s, begin(high.Job, epoch))
	now := epoch.Add(time.Minute)
	relayed, r := db.relayed(t)
	expectMany(t, relayed)
	var theirs []store.Claimed
	r.on("update", "occurrences", 1, func() verdict {
		theirs = mustClaim(t, s, now, 2)
		return pass
	})
	params := claimParams(now, 10)
	params.Quotas = append(params.Quotas, store.Quota{Lane: job.Lane{Tenant: job.DefaultTenant, Priority: job.PriorityHigh}, Limit: 10})
	claim, err := relayed.Claim(t.Context(), params)
	left := []store.QuotaLeft{{Found: 1, More: true, Next: now.Add(lease)}, {Found: 1, Next: now.Add(lease)}}
	if err != nil || len(claim.Occurrences) != 2 || !slices.Equal(claim.Quotas, left) {
		t.Fatalf("claimed %d, left %v, %v", len(claim.Occurrences), claim.Quotas, err)
	}
	if got := claim.Occurrences[0]; got.Timestamp != epoch.Add(2*time.Second) || got.Attempt != 1 {
		t.Errorf("claimed %s, attempt %d", got.Timestamp, got.Attempt)
	}
	for _, o := range theirs {
		if n := db.count(t, bson.M{"_id": o.ID.String(), "token": o.Token, "attempt": 1}); n != 1 {
			t.Errorf("%s is no longer theirs", o.ID)
		}
	}
}

// TestClaimMeetsAChange: a pause or an amendment between a claim's find and its stamp applies to the claimed
// occurrences.
func TestClaimMeetsAChange(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	paused, amended := newPut("paused", epoch, 0), newPut("amended", epoch, 0)
	mustPut(t, s, paused)
	mustPut(t, s, amended)
	change := amendment(amended.Job.Version)
	change.Name = name("amended")
	relayed, r := db.relayed(t)
	expectMany(t, relayed)
	r.on("update", "occurrences", 1, func() verdict {
		if err := errors.Join(s.Pause(t.Context(), name("paused"), job.NewRevision(epoch), epoch), s.Amend(t.Context(), change)); err != nil {
			t.Error(err)
		}
		return pass
	})
	claim, err := relayed.Claim(t.Context(), claimParams(epoch, 10))
	if err != nil || len(claim.Occurrences) != 1 {
		t.Fatalf("claimed %d, want 1 (%v)", len(claim.Occurrences), err)
	}
	got := claim.Occurrences[0]
	if got.Name != name("amended") || string(got.Callback.Data) != string(change.Callback.Data) {
		t.Errorf("claimed %s with %s", got.Name, got.Callback.Data)
	}
}

// TestClaimOfManyLanes: a claim of any number of lanes stamps by one write, and reads the jobs concurrently.
func TestClaimOfManyLanes(t *testing.T) {
	const lanes = 50
	db := newDatabase(t)
	s := db.open(t)
	var puts []store.Put
	for i := range lanes {
		p := newPut("k", epoch, 0, time.Duration(i)*time.Second, time.Hour)
		p.Job.Tenant = fmt.Sprint("tenant", i)
		puts = append(puts, begin(p.Job, epoch))
	}
	for _, result := range s.Put(t.Context(), puts) {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.AddDate(100, 0, 0), Limit: 1000})
	if err != nil || len(page.Lanes) != lanes {
		t.Fatalf("there are %d lanes, %v", len(page.Lanes), err)
	}
	params := store.ClaimParams{Now: epoch.Add(time.Minute), Lease: lease}
	for _, l := range page.Lanes {
		params.Quotas = append(params.Quotas, store.Quota{Lane: l.Lane, Limit: 1})
	}
	relayed, r := db.relayed(t)
	commands := make(map[string]int)
	r.set(func(c command) verdict {
		commands[c.name+" "+c.collection]++
		return pass
	})
	claim, err := relayed.Claim(t.Context(), params)
	r.set(nil)
	if err != nil || len(claim.Occurrences) != lanes || len(claim.Quotas) != lanes {
		t.Fatalf("claimed %d, told of %d quotas, %v", len(claim.Occurrences), len(claim.Quotas), err)
	}
	for i, left := range claim.Quotas {
		want := store.QuotaLeft{Found: 1, More: true, Next: params.Now.Add(lease)}
		if c := claim.Occurrences[i]; c.Lane() != params.Quotas[i].Lane || c.Timestamp != epoch || left != want {
			t.Errorf("of lane %s: claimed that of lane %s at %s, left %v", params.Quotas[i].Lane, c.Lane(), c.Timestamp, left)
		}
	}
	if commands["update occurrences"] != 1 || commands["find jobs"] != 1 {
		t.Errorf("it took %v", commands)
	}
}

// TestCancelMeetsASettlement: an occurrence that was held at a cancel is never retried, whenever its settlement
// arrives. A dead letter is not lost, even one that is redriven before the cancel has ended.
func TestCancelMeetsASettlement(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, own := range []bool{false, true} {
		for _, at := range []int{1, 2} {
			for _, c := range []struct {
				name       string
				outcome    store.Outcome
				redriven   bool
				dead, live int
			}{
				{"acked", store.Ack, false, 0, 0},
				{"retried", store.Retry, false, 0, 0},
				{"released", store.Release, false, 0, 0},
				{"buried", store.Bury, false, 1, 0},
				{"buried and redriven", store.Bury, true, 0, 1},
			} {
				t.Run(fmt.Sprintf("own %v, %s before delete %d", own, c.name, at), func(t *testing.T) {
					db.empty(t, s)
					mustPut(t, s, newPut("k", epoch, 0))
					held := mustClaim(t, s, epoch, 1)[0]
					if own {
						mustSettle(t, s, held, store.Bury)
						mustRedrive(t, s, held.ID)
						held = mustClaim(t, s, epoch, 1)[0]
					}
					relayed, r := db.relayed(t)
					happened := false
					r.on("delete", "occurrences", at, func() verdict {
						happened = true
						mustSettle(t, s, held, c.outcome)
						if c.redriven {
							mustRedrive(t, s, held.ID)
						}
						return pass
					})
					results, err := relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
					if err != nil || !happened {
						t.Fatalf("cancel: %v; settled meanwhile: %v", err, happened)
					}
					if got := results[0]; !got.Found || got.Cancelled+got.InFlight != 1 || at == 2 && got.InFlight != 1 {
						t.Errorf("result is %+v", got)
					}
					dead, err := s.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 10})
					if err != nil || len(dead) != c.dead {
						t.Errorf("%d dead letters, want %d (%v)", len(dead), c.dead, err)
					}
					if live := mustClaim(t, s, epoch.Add(24*time.Hour), 10); len(live) != c.live {
						t.Errorf("claimed %d, want %d", len(live), c.live)
					}
				})
			}
		}
	}
}

// TestCancelMeetsAPut: a job that is put again during its cancellation is afterwards either cancelled or whole.
func TestCancelMeetsAPut(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	mustPut(t, s, newPut("k", epoch, time.Hour))
	relayed, r := db.relayed(t)
	r.on("delete", "jobs", 1, func() verdict {
		mustPut(t, s, newPut("k", epoch, 2*time.Hour, 3*time.Hour))
		return pass
	})
	results, err := relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
	if err != nil || results[0] != (store.CancelResult{Found: true, Cancelled: 2}) {
		t.Errorf("the put first: %+v, %v", results, err)
	}

	mustPut(t, s, newPut("k", epoch, time.Hour))
	r.on("delete", "occurrences", 1, func() verdict {
		mustPut(t, s, newPut("k", epoch, 2*time.Hour, 3*time.Hour))
		return pass
	})
	results, err = relayed.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
	if err != nil || results[0] != (store.CancelResult{Found: true, Cancelled: 1}) {
		t.Errorf("the cancel first: %+v, %v", results, err)
	}
	if got := mustClaim(t, s, epoch.Add(24*time.Hour), 10); len(got) != 2 {
		t.Errorf("claimed %d of the job that was put after the cancel, want 2", len(got))
	}
}

// TestCancelMeetsAnExpansion: an expansion adds occurrences after a cancellation has counted those that there are. The
// cancellation deletes them, and answers with the number of those that were held, even if that is the number of the
// added ones.
func TestCancelMeetsAnExpansion(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, holding := range []bool{false, true} {
		t.Run(fmt.Sprintf("of as many held ones: %v", holding), func(t *testing.T) {
			db.empty(t, s)
			first := newCrontab("k", epoch, "@every 1s")
			mustPut(t, s, first)
			now := epoch.Add(15 * time.Second)
			expanding, e := db.relayed(t)
			added := mustExpand(t, expanding, now)
			want := store.CancelResult{Found: true, Cancelled: len(first.Occurrences) + len(added.Occurrences)}
			if holding {
				want.InFlight = len(mustClaim(t, s, now, len(added.Occurrences)))
				want.Cancelled -= want.InFlight
			}
			if n := len(added.Occurrences); n == 0 || holding && want.InFlight != n {
				t.Fatalf("%d are added, %d are held: the test shows nothing", n, want.InFlight)
			}
			begun, counted, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			e.on("insert", "occurrences", 1, func() verdict { // staged, and the cancellation has looked for staged ones
				close(begun)
				<-counted
				return pass
			})
			go func() { ended <- expanding.Advance(t.Context(), []store.Advance{added}) }()
			<-begun
			cancelling, c := db.relayed(t)
			c.on("delete", "occurrences", 1, func() verdict {
				close(counted)
				if err := <-ended; err != nil {
					t.Error(err)
				}
				return pass
			})
			results, err := cancelling.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: now})
			if err != nil || results[0] != want {
				t.Errorf("%+v, %v, want %+v", results, err, want)
			}
			if n := db.count(t, bson.M{}); n != 0 {
				t.Errorf("%d occurrences are left, want 0", n)
			}
		})
	}
}

// TestCancelOfMany: one command looks up the remaining occurrences of many jobs, and only jobs that have some need more
// commands. A job that is put again before it is cancelled is cancelled in its new state; a job that another caller
// cancels is not found.
func TestCancelOfMany(t *testing.T) {
	const jobs, left = 40, 10
	db := newDatabase(t)
	s := db.open(t)
	names := []job.Name{name("none")}
	for i := range jobs {
		instant := time.Duration(0)
		if i < left {
			instant = time.Hour
		}
		mustPut(t, s, newPut(fmt.Sprint("k", i), epoch, instant))
		names = append(names, name(fmt.Sprint("k", i)))
	}
	for _, o := range mustClaim(t, s, epoch, jobs) {
		mustSettle(t, s, o, store.Ack)
	}
	relayed, r := db.relayed(t)
	commands := make(map[string]int)
	r.set(func(c command) verdict {
		commands[c.name+" "+c.collection]++
		if c.name == "delete" && commands["delete jobs"] == 1 {
			mustPut(t, s, newPut("k0", epoch, 2*time.Hour, 3*time.Hour))
			if _, err := s.Cancel(t.Context(), []job.Name{name("k1")}, store.Asked{Now: epoch}); err != nil {
				t.Error(err)
			}
		}
		return pass
	})
	results, err := relayed.Cancel(t.Context(), append(names, names...), store.Asked{Now: epoch})
	r.set(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range results {
		want := store.CancelResult{Found: i > 0 && i <= jobs && i != 2}
		switch {
		case i == 1:
			want.Cancelled = 2
		case i > 2 && i <= left:
			want.Cancelled = 1
		}
		if got != want {
			t.Errorf("result %d is %+v, want %+v", i, got, want)
		}
	}
	// k0 is deleted a second time; a pending job's occurrences are counted.
	if commands["delete jobs"] != jobs+1 || commands["find jobs"] != 3 || commands["find occurrences"] != 1 ||
		commands["aggregate occurrences"] != 1+left-1 || commands["delete occurrences"] != left-1 {
		t.Errorf("it took %v", commands)
	}
	if got := mustClaim(t, s, epoch.Add(24*time.Hour), jobs); len(got) != 0 {
		t.Errorf("claimed %d, want 0", len(got))
	}
}

// TestSweepMeetsAPut: a job that is put again after a sweep has read it as expired stays as it was put.
func TestSweepMeetsAPut(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, c := range []struct {
		name, write string
		instants    []time.Duration
	}{
		{"of a job that has finished", "delete", nil},
		{"of a job that is live", "update", []time.Duration{time.Hour}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db.empty(t, s)
			mustPut(t, s, newPut("k", epoch, c.instants...))
			again := newPut("k", epoch, 2*time.Hour) // expired, and live
			relayed, r := db.relayed(t)
			r.on(c.write, "jobs", 1, func() verdict {
				mustPut(t, s, again)
				return pass
			})
			swept, err := relayed.Sweep(t.Context(), store.SweepParams{Now: epoch, Again: time.Hour, Limit: 10})
			if err != nil || swept.Jobs != 0 {
				t.Errorf("swept %+v, %v", swept, err)
			}
			status, err := store.ReadJob(t.Context(), s, name("k"))
			if err != nil || status.Revision != again.Job.Revision || status.ExpiresAt != again.Job.ExpiresAt {
				t.Errorf("the job is %q and expires at %s, %v", status.Revision, status.ExpiresAt, err)
			}
		})
	}
}
