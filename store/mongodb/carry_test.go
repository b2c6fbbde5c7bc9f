//go:build services

package mongodb_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// carrying returns a put that replaces another one and carries over all instants that both have.
func carrying(before, p store.Put) store.Put {
	ids := map[job.ID]job.ID{}
	for _, o := range before.Occurrences {
		ids[o.DeliveryID()] = o.ID
	}
	for _, c := range before.Carried {
		ids[c.As.DeliveryID()] = c.ID
	}
	fresh := p.Occurrences
	p.From, p.Occurrences = store.Replaced{Version: before.Job.Version}, nil
	for _, o := range fresh {
		if id, both := ids[o.DeliveryID()]; both {
			p.Carried = append(p.Carried, store.Carried{ID: id, As: o})
		} else {
			p.Occurrences = append(p.Occurrences, o)
		}
	}
	return p
}

// newJob returns a put of a job with instants at these offsets from the epoch, whatever the time of its submission.
func newJob(now time.Time, after ...time.Duration) store.Put {
	j := newPut("k", now).Job
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, epoch.Add(d))
	}
	return begin(j, now)
}

// minutes returns the instants at these offsets from the epoch, each counted once.
func minutes(after ...time.Duration) map[time.Time]int {
	all := map[time.Time]int{}
	for _, d := range after {
		all[epoch.Add(d)] = 1
	}
	return all
}

// TestCarryIsInterrupted: a put that carries occurrences over is interrupted anywhere, and any claim runs meanwhile.
// One of the two jobs is left whole, and each of its instants fires once, is cancelled, replaced again or exported.
func TestCarryIsInterrupted(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	const (
		fires      = "fires"
		cancelled  = "is cancelled"
		replaced   = "is replaced"
		isExported = "is exported"
	)
	for _, c := range []struct {
		then string
		lost verdict
		held bool // one instant, claimed at that moment
	}{
		{fires, cutBefore, false}, {fires, cutAfter, false}, {fires, cutBefore, true}, {fires, pass, true},
		{cancelled, cutBefore, true}, {replaced, cutBefore, true}, {isExported, cutBefore, true},
	} {
		for n := 1; ; n++ {
			more := false
			what := fmt.Sprintf("%s after verdict %d at command %d, one held %v", c.then, c.lost, n, c.held)
			t.Run(what, func(t *testing.T) {
				db.empty(t, s)
				first := newJob(epoch, 0, time.Minute, time.Hour)
				mustPut(t, s, first)
				second := carrying(first, newJob(epoch.Add(time.Second), 0, time.Minute, 2*time.Hour))
				fired := map[time.Time]int{}
				var held []store.Claimed
				relayed, r := db.relayed(t)
				left := n
				r.set(func(seen command) verdict {
					switch seen.name {
					case "find", "insert", "update", "delete", "aggregate":
					default:
						return pass
					}
					if left--; left != 0 {
						return pass
					}
					more = true
					if c.held {
						held = append(held, mustClaim(t, s, epoch.Add(time.Second), 1)...)
					}
					return c.lost
				})
				result := relayed.Put(t.Context(), []store.Put{second})[0]
				r.set(nil)
				if result.Err != nil && !errors.Is(result.Err, store.ErrUnavailable) || result.Err != nil && !more {
					t.Fatalf("put answers %v", result.Err)
				}
				if errors.Is(result.Err, store.ErrNotDone) {
					if status, err := store.ReadJob(t.Context(), s, name("k")); err != nil || status.Revision != first.Job.Revision {
						t.Errorf("put answers %v, but the job's revision is %s, %v", result.Err, status.Revision, err)
					}
				}

				exported := storetest.Contents(t, s) // before any other call
				status, err := store.ReadJob(t.Context(), s, name("k"))
				if err != nil {
					t.Fatal(err)
				}
				want := minutes(0, time.Minute, time.Hour)
				if status.Revision == second.Job.Revision {
					want = minutes(0, time.Minute, 2*time.Hour)
				}
				if result.Err == nil && (status.Revision != second.Job.Revision || result.Carried != 2) {
					t.Errorf("put answers %+v, and the job's revision is %s", result, status.Revision)
				}
				page, total, err := s.Occurrences(t.Context(),
					store.OccurrenceFilter{Name: name("k"), Revision: status.Revision, Limit: 10, Count: true})
				if err != nil || total != 3 || len(page) != 3 {
					t.Errorf("%d of %d are listed, %v", len(page), total, err)
				}
				switch c.then {
				case cancelled:
					results, err := s.Cancel(t.Context(), []job.Name{name("k")}, store.Asked{Now: epoch.Add(time.Second)})
					wanted := store.CancelResult{Found: true, Cancelled: 3 - len(held), InFlight: len(held)}
					if err != nil || results[0] != wanted {
						t.Errorf("cancel answers %+v, %v, want %+v", results, err, wanted)
					}
					for _, h := range held {
						mustSettle(t, s, h, store.Retry)
					}
					want = minutes()
				case isExported:
					n := 0
					for _, record := range exported {
						if o := record.(store.Document).Occurrence; o != nil && want[o.Timestamp] == 1 && o.Revision == status.Revision {
							n++
						}
					}
					if n != 3 || len(exported) != 4 {
						t.Errorf("%d of 3 instants and %d records were exported", n, len(exported))
					}
					return
				case replaced:
					p := second
					if status.Revision == first.Job.Revision {
						p = first
					}
					third := carrying(p, newJob(epoch.Add(2*time.Second), 0, time.Minute, 3*time.Hour))
					result := mustPut(t, s, third)
					if result.Carried != 2 || result.InFlight != len(held) {
						t.Errorf("put again answers %+v, %d held", result, len(held))
					}
					want = minutes(0, time.Minute, 3*time.Hour)
				}
				if c.then != cancelled {
					for i, h := range held {
						if i == 0 && n%2 == 0 {
							mustSettle(t, s, h, store.Retry)
							continue
						}
						mustSettle(t, s, h, store.Ack)
						fired[h.Timestamp]++
					}
				}
				fire(t, s, epoch.Add(24*time.Hour), fired)
				if fmt.Sprint(fired) != fmt.Sprint(want) {
					t.Errorf("fired %v, want %v", fired, want)
				}
				if n := db.count(t, bson.M{}); n != 0 {
					t.Errorf("%d are left", n)
				}
			})
			if !more || t.Failed() {
				break
			}
		}
	}
}

// TestClaimMeetsACarry: an occurrence that is carried over between a claim's reading of it and of its job is claimed
// under the new job, or is due again at once. It is neither put back as an orphan nor dropped, although its revision is
// old.
func TestClaimMeetsACarry(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, old := range []time.Duration{time.Second, 5 * time.Hour} {
		for n := 1; n <= 6; n++ {
			for _, collection := range []string{"jobs", "occurrences"} {
				t.Run(fmt.Sprintf("%s old, before find %d of %s", old, n, collection), func(t *testing.T) {
					db.empty(t, s)
					first := newJob(epoch.Add(-old), 0)
					mustPut(t, s, first)
					second := carrying(first, newJob(epoch, 0))
					relayed, r := db.relayed(t)
					r.on("find", collection, n, func() verdict {
						if result := mustPut(t, s, second); result.Carried != 1 {
							t.Errorf("carried %d", result.Carried)
						}
						return pass
					})
					fired := map[time.Time]int{}
					fire(t, relayed, epoch, fired)
					fire(t, s, epoch.Add(time.Second), fired)
					if fired[epoch] != 1 {
						t.Errorf("it fired %d times", fired[epoch])
					}
				})
			}
		}
	}
}

// TestSettlementMeetsAReplacement: an occurrence that fails, or is missed, while its job is replaced counts for the next
// job if that has it by then, and else for none.
func TestSettlementMeetsAReplacement(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	for _, outcome := range []store.Outcome{store.Bury, store.Miss} {
		write := map[store.Outcome]string{store.Bury: "update", store.Miss: "delete"}[outcome]
		for name, c := range map[string]struct {
			carried bool
			want    int // the count
			race    func(t *testing.T, relayed store.Store, r *relay, settle func(store.Store), replace func(store.Store))
		}{
			"before the replaced ones are deleted": {race: func(_ *testing.T, relayed store.Store, r *relay, settle, replace func(store.Store)) {
				r.on("delete", "occurrences", 1, func() verdict { settle(s); return pass })
				replace(relayed)
			}},
			"carried over before the write": {carried: true, want: 1, race: func(_ *testing.T, relayed store.Store, r *relay, settle, replace func(store.Store)) {
				r.on(write, "occurrences", 1, func() verdict { replace(s); return pass })
				settle(relayed)
			}},
			"before the next job is there": {carried: true, race: func(_ *testing.T, relayed store.Store, r *relay, settle, replace func(store.Store)) {
				r.on("update", "jobs", 1, func() verdict { settle(s); return pass })
				replace(relayed)
			}},
		} {
			t.Run(fmt.Sprintf("%s, %v", name, outcome), func(t *testing.T) {
				db.empty(t, s)
				first := newJob(epoch, 0, time.Hour)
				mustPut(t, s, first)
				held := mustClaim(t, s, epoch, 1)[0]
				after := []time.Duration{time.Hour, 2 * time.Hour}
				if c.carried {
					after = append(after, 0)
				}
				second := carrying(first, newJob(epoch.Add(time.Second), after...))
				relayed, r := db.relayed(t)
				settled, replaced := false, false
				c.race(t, relayed, r,
					func(s store.Store) { settled = true; mustSettle(t, s, held, outcome) },
					func(s store.Store) { replaced = true; mustPut(t, s, second) })
				if !settled || !replaced {
					t.Fatal("nothing happened meanwhile: the test shows nothing")
				}
				got := status(t, s)
				if got.Revision != second.Job.Revision || got.Failed+got.Missed != c.want {
					t.Errorf("the job has revision %s, %d failed and %d missed, want %d", got.Revision, got.Failed, got.Missed, c.want)
				}
				if n := len(mustClaim(t, s, epoch.Add(time.Minute), 10)); n != 0 {
					t.Errorf("%d are due once more", n)
				}
			})
		}
	}
}

// TestCarriedFurther: while a put counts its carried-over occurrences, another put carries them over once more. The
// first put's answer has them all the same.
func TestCarriedFurther(t *testing.T) {
	db := newDatabase(t)
	s := db.open(t)
	first := newJob(epoch, 0, time.Minute)
	mustPut(t, s, first)
	now := epoch.Add(time.Second)
	if held := mustClaim(t, s, now, 10); len(held) != 1 {
		t.Fatalf("claimed %d", len(held))
	}
	second := carrying(first, newJob(now, 0, time.Minute))
	third := carrying(second, newJob(now, 0, time.Minute))
	relayed, r := db.relayed(t)
	happened := false
	r.on("update", "jobs", 2, func() verdict { // after the flip, and before the count
		happened = true
		mustPut(t, s, third)
		return pass
	})
	result := relayed.Put(t.Context(), []store.Put{second})[0]
	if result.Err != nil || !happened {
		t.Fatalf("put answers %v; replaced meanwhile: %v", result.Err, happened)
	}
	if result.Carried != 2 || result.InFlight != 1 {
		t.Errorf("carried over %d, %d in flight", result.Carried, result.InFlight)
	}
}
