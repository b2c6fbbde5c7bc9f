// Package storetest is the suite that every store passes. It tests the contract of package store on the store's own
// handles, and passes all times in.
//
// Collections have a few hundred documents at most, so that the suite also runs on servers that scan them.
package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Opener makes one handle on the store under test. Handles of one Opener share their data, as replicas do. The suite
// closes them.
type Opener func() (store.Store, error)

// Run runs the tests of the suite in parallel. Several of them call newStore at once. It makes an empty store, to be
// removed when t ends, and returns its Opener.
func Run(t *testing.T, newStore func(t *testing.T) Opener) {
	t.Helper()
	run(t, newStore, func(string) bool { return true })
}

// Races runs the tests of the suite in which calls race, like Run: those for the race detector.
func Races(t *testing.T, newStore func(t *testing.T) Opener) {
	t.Helper()
	run(t, newStore, func(name string) bool { return strings.Contains(name, "racing") })
}

// FirstStart runs the test of replicas that start side by side, like Run: on a store that is truly new, where Run is
// given stores that were emptied.
func FirstStart(t *testing.T, newStore func(t *testing.T) Opener) {
	t.Helper()
	run(t, newStore, func(name string) bool { return name == startTogether })
}

func run(t *testing.T, newStore func(t *testing.T) Opener, wanted func(name string) bool) {
	t.Helper()
	for _, group := range [][]namedTest{
		putTests, newerTests, carryTests, cancelTests, claimTests, laneTests, settleTests, deadLetterTests, listTests,
		sweepTests, faultTests, lateTests, amendTests, pauseTests, triggerTests, expanderTests, staleAdvanceTests, missTests,
		partTests, transferTests, movingTests, backlogTests, countTests, recordTests, sampleTests, outcomeTests,
	} {
		for _, test := range group {
			if !wanted(test.name) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				test.run(&fixture{T: t, open: newStore(t), newStore: newStore})
			})
		}
	}
}

type namedTest struct {
	name string
	run  func(f *fixture)
}

// epoch is the time at which the tests take place; nothing depends on the real time.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const lease = time.Minute

// expansion is the horizon of recurring jobs.
var expansion = job.Expansion{Horizon: 20 * time.Second, CatchUpLimit: 1000}

// fixture is one test on one fresh store.
type fixture struct {
	*testing.T
	open Opener
	main store.Store
	two  store.Store

	newStore func(t *testing.T) Opener
}

// another returns the same test on another fresh store.
func (f *fixture) another() *fixture {
	f.Helper()
	return &fixture{T: f.T, open: f.newStore(f.T), newStore: f.newStore}
}

// handle opens one more handle.
func (f *fixture) handle() store.Store {
	f.Helper()
	s, err := f.open()
	if err != nil {
		f.Fatalf("open: %v", err)
	}
	f.Cleanup(func() {
		if err := s.Close(); err != nil {
			f.Errorf("close: %v", err)
		}
	})
	return s
}

// store returns the handle that most tests use.
func (f *fixture) store() store.Store {
	f.Helper()
	if f.main == nil {
		f.main = f.handle()
	}
	return f.main
}

// second returns another handle, for tests with two replicas.
func (f *fixture) second() store.Store {
	f.Helper()
	if f.two == nil {
		f.two = f.handle()
	}
	return f.two
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func name(key string) job.Name { return job.Name{Tenant: job.DefaultTenant, Key: key} }

// newPut returns a submission at now with instants at these offsets from now.
func newPut(n job.Name, now time.Time, after ...time.Duration) store.Put {
	revision := job.NewRevision(now)
	j := job.Job{
		Name:      n,
		Revision:  revision,
		Version:   revision,
		Callback:  job.Callback{Type: "http", Data: []byte(`{"url":"http://127.0.0.1/` + n.Key + `","payload":1}`)},
		CreatedAt: now,
		UpdatedAt: now,
		ExpiresAt: now,
	}
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, now.Add(d))
	}
	return begin(j, now)
}

// begin returns the put of a job, with its first occurrences. The job expires with the last of them.
func begin(j job.Job, now time.Time) store.Put {
	b, err := j.Begin(now, job.PastFire, expansion)
	if err != nil {
		panic(err)
	}
	for _, o := range b.Occurrences {
		if o.Timestamp.After(j.ExpiresAt) {
			j.ExpiresAt = o.Timestamp
		}
	}
	return store.Put{Job: j, Occurrences: b.Occurrences, Now: now}
}

// put puts one job and expects it to succeed.
func (f *fixture) put(p store.Put) store.PutResult {
	f.Helper()
	return f.putOn(f.store(), p)
}

func (f *fixture) putOn(s store.Store, p store.Put) store.PutResult {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), store.Within)
	defer cancel()
	results := s.Put(ctx, []store.Put{p})
	if len(results) != 1 {
		f.Fatalf("put answered %d results for 1", len(results))
	}
	f.must(results[0].Err)
	return results[0]
}

// job reads an existing job.
func (f *fixture) job(n job.Name) store.JobStatus {
	f.Helper()
	status, err := store.ReadJob(f.Context(), f.store(), n)
	f.must(err)
	return status
}

// pending lists the pending occurrences of a job's present revision, or none if the job is gone.
func (f *fixture) pending(n job.Name) []job.Occurrence {
	f.Helper()
	filter := store.OccurrenceFilter{Name: n, Limit: 1000, Count: true}
	if status, err := store.ReadJob(f.Context(), f.store(), n); err == nil {
		filter.Revision = status.Revision
	}
	page, total, err := f.store().Occurrences(f.Context(), filter)
	f.must(err)
	if total != len(page) {
		f.Fatalf("total is %d of %d occurrences", total, len(page))
	}
	return page
}

// claim claims up to limit occurrences at now of each lane that is reported as due.
func (f *fixture) claim(now time.Time, limit int) []store.Claimed {
	f.Helper()
	return f.tryClaim(now, limit).Occurrences
}

// tryClaim claims up to limit occurrences of each lane at now, and reports whether there may be more.
func (f *fixture) tryClaim(now time.Time, limit int) store.Claim {
	f.Helper()
	params := claimParams(now, limit)
	known := map[job.Lane]bool{job.DefaultLane: true}
	for _, l := range f.dueLanes(store.LaneDue{}, now, 1000) {
		if !known[l.Lane] {
			known[l.Lane] = true
			params.Quotas = append(params.Quotas, store.Quota{Lane: l.Lane, Limit: limit})
		}
	}
	claim, err := f.store().Claim(f.Context(), params)
	f.must(err)
	return claim
}

// claimParams select up to limit due occurrences of the default lane at now.
func claimParams(now time.Time, limit int) store.ClaimParams {
	return store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: limit}}}
}

// earlyParams returns claimParams with an early window.
func earlyParams(now time.Time, early time.Duration, limit int) store.ClaimParams {
	p := claimParams(now, limit)
	p.Early = early
	return p
}

// claimOne claims at now and expects exactly one occurrence.
func (f *fixture) claimOne(now time.Time) store.Claimed {
	f.Helper()
	got := f.claim(now, 10)
	if len(got) != 1 {
		f.Fatalf("claimed %d occurrences at %s, want 1", len(got), job.FormatTime(now))
	}
	return got[0]
}

// drain claims and acknowledges all occurrences from now on, including those that are put back, and become due hours
// later.
func (f *fixture) drain(now time.Time) (all []store.Claimed) {
	f.Helper()
	for i := range 4 {
		now = now.Add(time.Duration(i) * 2 * time.Hour)
		for more := true; more; {
			claim := f.tryClaim(now, 50)
			var settlements []store.Settlement
			for _, c := range claim.Occurrences {
				settlements = append(settlements, settlement(c, store.Ack))
			}
			f.settle(settlements...)
			all, more = append(all, claim.Occurrences...), claim.More()
		}
	}
	return all
}

// settle settles and expects no error.
func (f *fixture) settle(settlements ...store.Settlement) {
	f.Helper()
	f.must(f.store().Settle(f.Context(), settlements))
}

// settlement returns a settlement of a claim, at an hour after the epoch if the outcome needs a time.
func settlement(c store.Claimed, outcome store.Outcome) store.Settlement {
	at := epoch.Add(time.Hour)
	return store.Settlement{
		ID: c.ID, Token: c.Token, Hint: c.Hint, Outcome: outcome, DueAt: at, At: at, Error: "it failed", Target: c.Target,
		Name: c.Name, Priority: c.Priority, Revision: c.Revision, KeepUntil: at,
	}
}

// bury puts a job due at once and buries its one occurrence.
func (f *fixture) bury(n job.Name, now time.Time) store.Claimed {
	f.Helper()
	f.put(newPut(n, now, 0))
	for _, c := range f.claim(now, 100) {
		if c.Name == n {
			s := settlement(c, store.Bury)
			s.At = now
			f.settle(s)
			return c
		}
	}
	f.Fatalf("the occurrence of %s was not claimed", n)
	return store.Claimed{}
}

func (f *fixture) deadLetters(filter store.DeadLetterFilter) []job.Occurrence {
	f.Helper()
	if filter.Limit == 0 {
		filter.Limit = 1000
	}
	if filter.Tenant == "" {
		filter.Tenant = job.DefaultTenant
	}
	page, err := f.store().DeadLetters(f.Context(), filter)
	f.must(err)
	return page
}

func (f *fixture) nextDue() time.Time {
	f.Helper()
	var due time.Time
	for _, l := range f.dueLanes(store.LaneDue{}, epoch.Add(100*365*24*time.Hour), 1000) {
		if due.IsZero() || l.DueAt.Before(due) {
			due = l.DueAt
		}
	}
	return due
}

func timestamps[T any](items []T, of func(T) time.Time) []string {
	all := make([]string, len(items))
	for i, item := range items {
		all[i] = job.FormatTime(of(item))
	}
	slices.Sort(all)
	return all
}

func occurrenceTime(o job.Occurrence) time.Time { return o.Timestamp }
func claimedTime(c store.Claimed) time.Time     { return c.Timestamp }

// expectTimes compares sets of instants.
func (f *fixture) expectTimes(what string, got []string, want ...time.Time) {
	f.Helper()
	expected := timestamps(want, func(t time.Time) time.Time { return t })
	if !slices.Equal(got, expected) {
		f.Errorf("%s:\n got %s\nwant %s", what, strings.Join(got, " "), strings.Join(expected, " "))
	}
}

// expect compares two values of a comparable type.
func expect[V comparable](f *fixture, what string, got, want V) {
	f.Helper()
	if got != want {
		f.Errorf("%s is %v, want %v", what, got, want)
	}
}

// expectSame compares two values of a type that is not comparable.
func expectSame[V any](f *fixture, what string, got, want V) {
	f.Helper()
	if !reflect.DeepEqual(got, want) {
		f.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// traced is a trace context, which stores keep with the options.
const traced job.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,a=1,b@c=x y"

// expectOptions compares options.
func expectOptions(f *fixture, what string, got, want job.Options) {
	f.Helper()
	if !reflect.DeepEqual(got, want) {
		f.Errorf("%s are %s, want %s", what, got.Encode(), want.Encode())
	}
}

func keys(statuses []store.JobStatus) string {
	all := make([]string, len(statuses))
	for i, s := range statuses {
		all[i] = s.Key
	}
	return fmt.Sprintf("%q", all)
}
