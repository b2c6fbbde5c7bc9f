package storetest

import (
	"fmt"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var deadLetterTests = []namedTest{
	{"bury keeps the target for a redrive", testBury},
	{"redrive fires whether or not the job exists", testRedrive},
	{"redriven occurrences keep no job alive", testRedriveLive},
	{"dead letters are listed by key, prefix and id", testDeadLetterFilters},
	{"dead letters of other tenants", testDeadLetterTenants},
	{"dead letters are deleted", testDeadLetterDelete},
	{"dead letters in brief", testDeadLetterBrief},
	{"keys without a job are listed", testStandalone},
}

func testBury(f *fixture) {
	p := newPut(name("k"), epoch, 0)
	p.Job.Options.Retry.MaxAttempts = 4
	p.Job.Options.Trace = traced
	f.put(p)
	c := f.claimOne(epoch)
	f.settle(settlement(c, store.Bury))
	dead := f.deadLetters(store.DeadLetterFilter{})
	if len(dead) != 1 {
		f.Fatalf("%d dead letters, want 1", len(dead))
	}
	d := dead[0]
	expect(f, "id", d.ID, c.ID)
	expect(f, "delivery id", d.DeliveryID(), c.DeliveryID())
	expect(f, "name", d.Name, c.Name)
	expect(f, "timestamp", d.Timestamp, epoch)
	expect(f, "failed", d.FailedAt, epoch.Add(time.Hour))
	expect(f, "attempt", d.Attempt, 1)
	expect(f, "error", d.LastError, "it failed")
	expect(f, "due is unset", d.DueAt.IsZero(), true)
	if d.Own == nil {
		f.Fatal("a dead letter without its callback")
	}
	expect(f, "callback type", d.Own.Callback.Type, p.Job.Callback.Type)
	expect(f, "callback data", string(d.Own.Callback.Data), string(p.Job.Callback.Data))
	expectOptions(f, "options", d.Own.Options, p.Job.Options)

	expect(f, "live", f.job(name("k")).Live(), false)
	expect(f, "pending", len(f.pending(name("k"))), 0)
	expect(f, "claimed", len(f.claim(epoch.Add(48*time.Hour), 10)), 0)
}

func testRedrive(f *fixture) {
	for _, became := range []string{"finished", "replaced", "cancelled"} {
		p := newPut(name(became), epoch, 0)
		f.put(p)
		buried := f.claimOne(epoch)
		f.settle(settlement(buried, store.Bury))
		switch became {
		case "replaced":
			replacement := newPut(name(became), epoch, 10*time.Hour)
			replacement.Job.Callback.Data = []byte(`{"payload":"another"}`)
			f.put(replacement)
		case "cancelled":
			f.cancel(name(became))
		}
		now := epoch.Add(2 * time.Hour)
		n, err := f.store().SettleDead(f.Context(),
			redrive(job.DefaultTenant, now, buried.ID, job.OccurrenceID(name("x"), "", epoch, 0, "")))
		f.must(err)
		expect(f, "redriven", n, 1)
		expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 0)
		expect(f, "next due", f.nextDue(), now)

		c := f.claimOne(now)
		expect(f, "id", c.ID, buried.ID)
		expect(f, "delivery id", c.DeliveryID(), buried.DeliveryID())
		expect(f, "attempt", c.Attempt, 1)
		expect(f, "timestamp", c.Timestamp, epoch)
		expect(f, "callback data", string(c.Callback.Data), string(p.Job.Callback.Data))

		f.settle(settlement(c, store.Bury)) // settle it again
		_, err = f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, now, buried.ID))
		f.must(err)
		f.settle(settlement(f.claimOne(now), store.Ack))
		expect(f, "claimed after it was delivered", len(f.claim(now.Add(time.Hour), 10)), 0)
	}
}

func testRedriveLive(f *fixture) {
	buried := f.bury(name("k"), epoch)
	_, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, epoch, buried.ID))
	f.must(err)
	expect(f, "live", f.job(name("k")).Live(), false)
	pending := f.pending(name("k"))
	expect(f, "pending all the same", len(pending), 1)
	expect(f, "revision", pending[0].Revision, "")
	expect(f, "redriven twice", f.redrive(buried.ID), 0)
}

func (f *fixture) redrive(ids ...job.ID) int {
	f.Helper()
	n, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, epoch, ids...))
	f.must(err)
	return n
}

func redrive(tenant string, now time.Time, ids ...job.ID) store.DeadSettlement {
	return store.DeadSettlement{Tenant: tenant, IDs: ids, Outcome: store.Redrive, Now: now}
}

func discard(tenant string, ids ...job.ID) store.DeadSettlement {
	return store.DeadSettlement{Tenant: tenant, IDs: ids, Outcome: store.Discard}
}

func testDeadLetterFilters(f *fixture) {
	var ids []job.ID
	for i, key := range []string{"a", "a%b", "a%c", "b", "a%"} {
		ids = append(ids, f.bury(name(key), epoch.Add(time.Duration(i)*time.Second)).ID)
	}
	f.put(newPut(name("a%d"), epoch, time.Hour)) // pending ones are not dead letters
	for _, c := range []struct {
		name   string
		filter store.DeadLetterFilter
		want   []int
	}{
		{"all", store.DeadLetterFilter{}, []int{0, 1, 2, 3, 4}},
		{"key", store.DeadLetterFilter{Key: "a%b"}, []int{1}},
		{"prefix", store.DeadLetterFilter{Prefix: "a%"}, []int{1, 2, 4}},
		{"id", store.DeadLetterFilter{ID: ids[3]}, []int{3}},
		{"id, after another", store.DeadLetterFilter{ID: ids[3], After: ids[2]}, []int{3}},
		{"id, after itself", store.DeadLetterFilter{ID: ids[3], After: ids[3]}, nil},
		{"id, of a key", store.DeadLetterFilter{ID: ids[1], Key: "a%b"}, []int{1}},
		{"id, of another key", store.DeadLetterFilter{ID: ids[1], Key: "a%c"}, nil},
		{"id, with prefix", store.DeadLetterFilter{ID: ids[1], Prefix: "a%", Brief: true}, []int{1}},
		{"id, with another prefix", store.DeadLetterFilter{ID: ids[0], Prefix: "a%", Brief: true}, nil},
		{"limit", store.DeadLetterFilter{Limit: 2}, []int{0, 1}},
		{"after", store.DeadLetterFilter{After: ids[1], Limit: 2}, []int{2, 3}},
		{"after, with prefix", store.DeadLetterFilter{Prefix: "a", After: ids[1]}, []int{2, 4}},
		{"unknown", store.DeadLetterFilter{Key: "none"}, nil},
	} {
		page := f.deadLetters(c.filter)
		if len(page) != len(c.want) {
			f.Errorf("%s: %d dead letters, want %d", c.name, len(page), len(c.want))
			continue
		}
		for i, want := range c.want {
			expect(f, c.name+" "+strconv.Itoa(i), page[i].ID, ids[want])
		}
	}
}

func testDeadLetterTenants(f *fixture) {
	mine := f.bury(name("k"), epoch)
	theirs := f.bury(job.Name{Tenant: "other", Key: "k"}, epoch)
	expect(f, "mine", len(f.deadLetters(store.DeadLetterFilter{})), 1)
	expect(f, "redriven", f.redrive(theirs.ID), 0)
	n, err := f.store().SettleDead(f.Context(), discard("other", mine.ID))
	f.must(err)
	expect(f, "deleted", n, 0)
	expect(f, "theirs", len(f.deadLetters(store.DeadLetterFilter{Tenant: "other"})), 1)
}

func testDeadLetterDelete(f *fixture) {
	buried := f.bury(name("k"), epoch)
	f.put(newPut(name("pending"), epoch, time.Hour))
	pending := f.pending(name("pending"))[0]
	n, err := f.store().SettleDead(f.Context(), discard(job.DefaultTenant, buried.ID, pending.ID))
	f.must(err)
	expect(f, "deleted", n, 1)
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 0)
	expect(f, "pending", len(f.pending(name("pending"))), 1)
	expect(f, "redriven", f.redrive(buried.ID), 0)
}

func testDeadLetterBrief(f *fixture) {
	buried := f.bury(name("k"), epoch)
	brief := f.deadLetters(store.DeadLetterFilter{Prefix: "k", Brief: true})
	if len(brief) != 1 || brief[0].ID != buried.ID || brief[0].Own == nil {
		f.Fatalf("in brief: %+v", brief)
	}
	expect(f, "callback type", brief[0].Own.Callback.Type, "http")
	expect(f, "callback data", string(brief[0].Own.Callback.Data), "")
	expect(f, "redriven", f.redrive(buried.ID), 1)
	expect(f, "callback data after all", string(f.claimOne(epoch).Callback.Data), string(buried.Callback.Data))
}

func testStandalone(f *fixture) {
	listed := func(filter store.JobFilter) string {
		f.Helper()
		filter.Standalone = true
		var all []string
		for _, s := range f.jobs(filter) {
			expect(f, "tenant", s.Tenant, job.DefaultTenant)
			text := s.Key
			if s.Revision != "" {
				text += " (job)"
			} else {
				expectSame(f, "a key without a job", s, store.JobStatus{Job: job.Job{Name: s.Name}})
			}
			all = append(all, text)
		}
		return fmt.Sprintf("%q", all)
	}
	var ids []job.ID
	for i, key := range []string{"p-b", "p-a", "p-a", "q", "p-dead", "p-c"} { // a repeated key has two instants
		buried := f.bury(name(key), epoch.Add(time.Duration(i)*time.Second))
		if f.cancel(name(key)); key != "p-dead" {
			ids = append(ids, buried.ID)
		}
	}
	f.redrive(ids...)
	f.bury(job.Name{Tenant: "other", Key: "p-x"}, epoch)
	for _, key := range []string{"p-ab", "p-c", "r"} {
		f.put(newPut(name(key), epoch, time.Hour))
	}
	f.cancel(name("nothing"))
	f.trigger(trigger(name("r"), epoch, 1)) // of an existing job
	for _, c := range []struct {
		what   string
		filter store.JobFilter
		want   string
	}{
		{"all", store.JobFilter{Limit: 10}, `["p-a" "p-ab (job)" "p-b" "p-c (job)" "q" "r (job)"]`},
		{"by prefix", store.JobFilter{Prefix: "p-", Limit: 10}, `["p-a" "p-ab (job)" "p-b" "p-c (job)"]`},
		{"first page", store.JobFilter{Prefix: "p-", Limit: 3}, `["p-a" "p-ab (job)" "p-b"]`},
		{"first page of one", store.JobFilter{Prefix: "p-", Limit: 1}, `["p-a"]`},
		{"second page of one", store.JobFilter{Prefix: "p-", After: "p-a", Limit: 1}, `["p-ab (job)"]`},
		{"second page", store.JobFilter{Prefix: "p-", After: "p-b", Limit: 3}, `["p-c (job)"]`},
		{"last page", store.JobFilter{Prefix: "p-", After: "p-c", Limit: 2}, `[]`},
		{"one key", store.JobFilter{Key: "p-b", Limit: 2}, `["p-b"]`},
		{"one key of a job", store.JobFilter{Key: "r", Limit: 2}, `["r (job)"]`},
		{"a key of a dead letter", store.JobFilter{Key: "p-dead", Limit: 2}, `[]`},
	} {
		expect(f, c.what, listed(c.filter), c.want)
	}
	expect(f, "jobs alone", keys(f.jobs(store.JobFilter{})), `["p-ab" "p-c" "r"]`)
}
