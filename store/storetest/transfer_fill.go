package storetest

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tenants are the tenants of the jobs that fill makes.
var tenants = []string{job.DefaultTenant, "o/t %2F", "other"}

// fill puts one document of each kind that a store keeps, in its state a minute after the epoch.
func (f *fixture) fill() {
	f.Helper()
	for _, key := range []string{"list", `a/b %2F?#"\<é>&`, "🔔", "job:default/x", "acked", "retried", "released", "buried",
		"redriven", "cancelled"} {
		p := newPut(name(key), epoch, 0, 10*time.Minute, time.Hour)
		p.Job.Options.Retry.MaxAttempts = 7
		p.Job.Options.Trace = traced
		p.Job.Callback.Data = []byte("{ \"key\" : \"\\u2028<é>\u2028\",\n\"n\": [1e2, 12345678901234567890, 1.0] }")
		f.put(p)
	}
	for _, tenant := range tenants[1:] {
		f.put(newPut(job.Name{Tenant: tenant, Key: "list"}, epoch, 0, time.Hour))
		f.put(newRecurring(job.Name{Tenant: tenant, Key: "tick"}, epoch, "*/5 * * * * *"))
	}
	finished := newPut(name("finished"), epoch)
	finished.Job.ExpiresAt = epoch.Add(24 * time.Hour)
	f.put(finished)
	for key, subscribers := range map[string]string{
		"steps": "null", "counted": "3", "named": `["a","b \"<é>",{"id":7, "name":"<x>"}]`,
	} {
		f.put(newSequence(name(key), epoch, subscribers))
	}
	f.fillRecurring()
	for _, c := range f.claim(epoch, 100) { // the unsettled claims are held
		outcome, ok := map[string]store.Outcome{
			"acked": store.Ack, "retried": store.Retry, "released": store.Release, "buried": store.Bury, "redriven": store.Bury,
			"named": store.Bury,
		}[c.Name.Key]
		if ok {
			f.settle(settlement(c, outcome))
		}
		if c.Name.Key == "redriven" {
			expect(f, "redriven", f.redrive(c.ID), 1)
		}
	}
	later := newPut(name("due"), epoch, 0)
	f.put(later)
	f.trigger(trigger(name("list"), epoch.Add(30*time.Second), 5))
	f.trigger(trigger(name("list"), epoch.Add(2*time.Hour), 6))
	f.must(f.store().Amend(f.Context(), amendment(later.Job, later.Job.Version, epoch.Add(time.Minute))))
	f.pause(name("retried"), epoch.Add(time.Minute))
	f.pause(name("acked"), epoch.Add(time.Minute))
	f.cancel(name("cancelled"))
}

// fillRecurring puts recurring jobs: fresh, advanced, claimed for expansion, ended, and paused.
func (f *fixture) fillRecurring() {
	f.Helper()
	missed := newRecurring(name("advanced"), epoch.Add(-time.Hour), "@every 10s")
	missed.Job.Options.CatchUp, missed.Job.Options.Deadline = job.CatchUpAll, job.Duration(time.Minute)
	f.put(missed)
	j, token := f.claimJob(epoch)
	f.advance(advanceOf(j, token, epoch))
	expect(f, "some ticks are missed", f.job(name("advanced")).Missed > 0, true)
	f.put(newEnding(name("ended"), epoch, "@every 10s", epoch.Add(15*time.Second)))
	f.put(newRecurring(name("claimed"), epoch.Add(-time.Minute), "@every 10s"))
	f.claimJob(epoch)
	f.put(newRecurring(name("fresh"), epoch, "@every 10s"))
	f.put(newRecurring(name("paused"), epoch, "@every 10s"))
	f.pause(name("paused"), epoch.Add(time.Second))
}

// export exports everything, page by page, through two handles.
func (f *fixture) export(limit int) (all []store.Document) {
	f.Helper()
	f.exportPages(limit, func(records []store.Document) { all = append(all, records...) })
	return all
}

func (f *fixture) exportPages(limit int, each func([]store.Document)) {
	f.Helper()
	var after store.Place
	for i := range 10_000 {
		s := []store.Store{f.store(), f.second()}[i%2]
		records, next, err := s.Export(f.Context(), after, limit)
		f.must(err)
		if len(records) == 0 {
			return
		}
		if next == "" || strings.ContainsFunc(string(next), unicode.IsControl) {
			f.Fatalf("the place behind a page is %q", next)
		}
		after = next
		each(records)
	}
	f.Fatal("an export does not end")
}

// importAll imports records in batches and returns the number of inserted ones.
func (f *fixture) importAll(records []store.Document, batch int) (inserted int) {
	f.Helper()
	for part := range slices.Chunk(records, batch) {
		n, err := f.store().Import(f.Context(), part)
		f.must(err)
		inserted += n
	}
	return inserted
}

// sorted returns an export's jobs, in the order of their names, and its occurrences, in the order of their ids.
func sorted(records []store.Document) (jobs []job.Job, occurrences []job.Occurrence) {
	for _, r := range records {
		if r.Job != nil {
			jobs = append(jobs, *r.Job)
		} else {
			occurrences = append(occurrences, *r.Occurrence)
		}
	}
	slices.SortFunc(jobs, func(a, b job.Job) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key, b.Key))
	})
	slices.SortFunc(occurrences, func(a, b job.Occurrence) int { return a.ID.Compare(b.ID) })
	return jobs, occurrences
}

// seen is everything that a store shows of the documents that fill made, without its export.
type seen struct {
	listed, jobs []store.JobStatus // listed also has the keys without a job
	pending      []job.Occurrence  // without their callbacks
	dead         []job.Occurrence
	nextDue      time.Time
}

func (f *fixture) look() (s seen) {
	f.Helper()
	for _, tenant := range tenants {
		listed, err := f.store().Jobs(f.Context(), store.JobFilter{Tenant: tenant, Limit: 1000, Standalone: true})
		f.must(err)
		s.listed = append(s.listed, listed...)
		s.dead = append(s.dead, f.deadLetters(store.DeadLetterFilter{Tenant: tenant})...)
	}
	names := map[job.Name]bool{}
	for _, status := range s.listed {
		names[status.Name] = true
		if status.Revision != "" {
			s.jobs = append(s.jobs, f.job(status.Name))
		}
	}
	for n := range maps.Keys(names) {
		s.pending = append(s.pending, f.pending(n)...)
	}
	slices.SortFunc(s.pending, func(a, b job.Occurrence) int { return a.ID.Compare(b.ID) })
	s.nextDue = f.nextDue()
	return s
}

// expectLook compares the views of two stores.
func expectLook(f *fixture, what string, got, want seen) {
	f.Helper()
	expectEach(f, what+": job", got.jobs, want.jobs)
	expectEach(f, what+": listed job", got.listed, want.listed)
	expectEach(f, what+": pending", got.pending, want.pending)
	expectEach(f, what+": dead letter", got.dead, want.dead)
	expect(f, what+": next due", got.nextDue, want.nextDue)
}

// expectEach compares lists item by item, so that a difference is visible.
func expectEach[V any](f *fixture, what string, got, want []V) {
	f.Helper()
	if len(got) != len(want) {
		f.Errorf("%s: there are %d, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) { // in Go's syntax, since a job's String is its name
			f.Errorf("%s:\n got %#v\nwant %#v", what, got[i], want[i])
		}
	}
}
