package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var outcomeTests = []namedTest{
	{"a job counts its outcomes", testOutcomes},
	{"a carried-over occurrence counts for its present job", testOutcomesCarried},
	{"an occurrence that is not carried over counts for no later job", testOutcomesLeft},
	{"outcomes leave out settlements before the replacement", testOutcomesCarriedLate},
	{"a job keeps the trouble of its latest instant", testTrouble},
	{"an expansion counts its occurrences", testOutcomesAdvance},
	{"counts are moved with their job", testOutcomesMoved},
}

// expectCounts compares a job's counts, and the number of deliveries that follows from them.
func (f *fixture) expectCounts(what string, n job.Name, planned, delivered, failed, missed int) {
	f.Helper()
	pending := 0
	for _, o := range f.pending(n) {
		if o.Revision != "" {
			pending++
		}
	}
	for _, s := range append(f.jobs(store.JobFilter{Prefix: n.Key}), f.job(n)) {
		if s.Name == n {
			got := fmt.Sprint(s.Planned, s.Planned-pending-s.Failed-s.Missed, s.Failed, s.Missed)
			expect(f, what+": planned, delivered, failed, missed", got, fmt.Sprint(planned, delivered, failed, missed))
		}
	}
}

// end settles a claim twice, which has the effect of once.
func (f *fixture) end(c store.Claimed, outcome store.Outcome, at time.Time, failure string) {
	f.Helper()
	s := settlement(c, outcome)
	s.At, s.DueAt, s.Error = at, at, failure
	f.settle(s)
	f.settle(s)
}

func testOutcomes(f *fixture) {
	n := name("k")
	p := newPut(n, epoch, 0, time.Second, 2*time.Second, 3*time.Second, time.Hour)
	f.put(p)
	f.put(newPut(name("other"), epoch, time.Hour))
	f.expectCounts("at first", n, 5, 0, 0, 0)
	now := epoch
	f.end(f.claimOne(now), store.Ack, now, "")
	f.expectCounts("acked", n, 5, 1, 0, 0)
	now = now.Add(time.Second)
	f.end(f.claimOne(now), store.Retry, now, "no")
	f.expectCounts("retried", n, 5, 1, 0, 0)
	f.end(f.claimOne(now), store.Release, now, "")
	f.end(f.claimOne(now), store.Ack, now, "")
	f.expectCounts("acked then", n, 5, 2, 0, 0)
	expect(f, "trouble", f.job(n).Trouble, job.Trouble{})
	now = now.Add(time.Second)
	buried := f.claimOne(now)
	f.end(buried, store.Bury, now, "refused")
	f.expectCounts("buried", n, 5, 2, 1, 0)
	expect(f, "trouble", f.job(n).Trouble, job.Trouble{Instant: now, At: now, Error: "refused"})
	now = now.Add(time.Second)
	f.end(f.claimOne(now), store.Miss, now, "")
	f.expectCounts("missed", n, 5, 2, 1, 1)
	trouble := job.Trouble{Missed: true, Instant: now, At: now}
	expect(f, "trouble", f.job(n).Trouble, trouble)

	redriven, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, now, buried.ID))
	f.must(err)
	expect(f, "redriven", redriven, 1)
	f.expectCounts("redriven", n, 5, 2, 1, 1)
	f.end(f.claimOne(now), store.Bury, now.Add(time.Minute), "again")
	f.trigger(trigger(n, now, 1))
	f.end(f.claimOne(now), store.Bury, now, "triggered")
	f.expectCounts("a standalone occurrence is buried", n, 5, 2, 1, 1)
	expect(f, "trouble of a standalone occurrence", f.job(n).Trouble, trouble)

	f.pause(n, now)
	f.resume(n, now)
	present := f.job(n)
	f.must(f.store().Amend(f.Context(), amendment(present.Job, present.Version, now)))
	f.expectCounts("amended and paused", n, 5, 2, 1, 1)
	expect(f, "trouble when amended and paused", f.job(n).Trouble, trouble)
	f.expectCounts("another job", name("other"), 1, 0, 0, 0)

	held := f.claim(epoch.Add(time.Hour), 10)
	again := newPut(n, now, 2*time.Hour)
	again.Job.Missed, again.Job.Planned = 1, 2
	again.Job.Trouble = job.Trouble{Missed: true, Instant: epoch, At: now}
	f.put(again)
	f.expectCounts("replaced", n, 2, 0, 0, 1)
	expect(f, "trouble when replaced", f.job(n).Trouble, again.Job.Trouble)
	for _, c := range held {
		if c.Name == n {
			f.end(c, store.Bury, now, "of what was replaced")
		}
	}
	f.expectCounts("an occurrence of the replaced job is buried", n, 2, 0, 0, 1)
	f.cancel(n)
	f.put(newPut(n, now, time.Hour))
	f.expectCounts("put after a cancellation", n, 1, 0, 0, 0)
	expect(f, "trouble after a cancellation", f.job(n).Trouble, job.Trouble{})
}

func testOutcomesCarried(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Bury, store.Miss} {
		n := name(fmt.Sprint("k", i))
		first := newPut(n, epoch, 0, time.Hour)
		f.put(first)
		held := f.claimOne(epoch)
		later := epoch.Add(time.Second)
		second := replacing(first, edited(n, later, 0, time.Hour, 2*time.Hour))
		second.Job.Planned = len(second.Occurrences) + len(second.Carried)
		expect(f, "carried", f.put(second).Carried, 2)
		f.expectCounts("replaced", n, 3, 0, 0, 0)
		f.end(held, outcome, later, "refused")
		counts := []int{0, 0, 0}
		counts[i]++
		f.expectCounts("settled", n, 3, counts[0], counts[1], counts[2])
		want := []job.Trouble{{}, {Instant: epoch, At: later, Error: "refused"}, {Missed: true, Instant: epoch, At: later}}[i]
		expect(f, "trouble", f.job(n).Trouble, want)
	}
}

// testOutcomesCarriedLate: an occurrence that is settled between the making of the put and its execution counts for the
// replaced job, not for the new one.
// testOutcomesLeft: a replaced job's held occurrence that the next job does not have ends after the replacement, which
// has carried another one over.
func testOutcomesLeft(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Bury, store.Miss} {
		n := name(fmt.Sprint("k", i))
		first := newPut(n, epoch, 0, time.Hour)
		f.put(first)
		held := f.claimOne(epoch)
		later := epoch.Add(time.Second)
		second := replacing(first, edited(n, later, time.Hour, 2*time.Hour))
		second.Job.Planned = len(second.Occurrences) + len(second.Carried)
		expect(f, "carried", f.put(second).Carried, 1)
		f.end(held, outcome, later, "refused")
		f.expectCounts("settled", n, 2, 0, 0, 0)
		expect(f, "trouble", f.job(n).Trouble, job.Trouble{})
	}
}

func testOutcomesCarriedLate(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Bury, store.Miss} {
		n := name(fmt.Sprint("k", i))
		first := newPut(n, epoch, 0, time.Second, time.Hour)
		f.put(first)
		later := epoch.Add(time.Second)
		second := replacing(first, edited(n, later, 0, time.Second, time.Hour, 2*time.Hour))
		second.Job.Planned = len(second.Occurrences) + len(second.Carried)
		f.end(f.claimOne(epoch), outcome, epoch, "refused")
		held := f.claimOne(later)
		expect(f, "carried", f.put(second).Carried, 2)
		f.expectCounts("replaced", n, 3, 0, 0, 0)
		f.end(held, store.Ack, later, "")
		f.expectCounts("one that was carried is delivered", n, 3, 1, 0, 0)
	}
	const most, lost = 1100, 40 // more than one write of a store changes
	after := make([]time.Duration, most)
	for i := range after {
		after[i] = time.Duration(i) * time.Millisecond
	}
	n := name("many")
	first := newPut(n, epoch, after...)
	f.put(first)
	second := replacing(first, edited(n, epoch.Add(2*time.Second), append(after, time.Hour)...))
	second.Job.Planned = len(second.Occurrences) + len(second.Carried)
	for _, c := range f.claim(epoch.Add(2*time.Second), lost) {
		f.end(c, store.Ack, epoch.Add(2*time.Second), "")
	}
	f.put(second)
	expect(f, "planned of many", f.job(n).Planned, most+1-lost)
}

func testTrouble(f *fixture) {
	n := name("k")
	f.put(newPut(n, epoch, 0, time.Second, 2*time.Second))
	held := f.claim(epoch.Add(time.Minute), 10)
	byAge := make(map[time.Duration]store.Claimed)
	for _, c := range held {
		byAge[c.Timestamp.Sub(epoch)] = c
	}
	at := epoch.Add(time.Minute)
	f.end(byAge[time.Second], store.Bury, at, "in the middle")
	want := job.Trouble{Instant: epoch.Add(time.Second), At: at, Error: "in the middle"}
	f.end(byAge[0], store.Bury, at.Add(time.Minute), "of an earlier instant")
	expect(f, "trouble", f.job(n).Trouble, want)
	f.end(byAge[2*time.Second], store.Bury, at, "bad \x00 \xff \"text\": "+strings.Repeat("é", 5000))
	got := f.job(n).Trouble
	expect(f, "instant", got.Instant, epoch.Add(2*time.Second))
	if len(got.Error) > 1000 || !strings.HasPrefix(got.Error, "bad \x00") || !strings.HasSuffix(got.Error, "é") {
		f.Errorf("error of %d bytes: %.40q", len(got.Error), got.Error)
	}

	// Many at once, of several jobs.
	f.put(newPut(name("a"), epoch, 0, time.Second, 2*time.Second, 3*time.Second))
	f.put(newPut(name("b"), epoch, 0, time.Second, 2*time.Second, 3*time.Second))
	var settlements []store.Settlement
	for i, c := range f.claim(at, 10) {
		s := settlement(c, []store.Outcome{store.Bury, store.Miss}[i%2])
		settlements = append(settlements, s)
	}
	f.settle(append(settlements, settlements...)...)
	for _, key := range []string{"a", "b"} {
		j := f.job(name(key))
		expect(f, "ended", fmt.Sprint(j.Failed+j.Missed), "4")
		expect(f, "latest", j.Trouble.Instant, epoch.Add(3*time.Second))
	}
	expect(f, "failed in all", f.job(name("a")).Failed+f.job(name("b")).Failed, 4)
}

func testOutcomesAdvance(f *fixture) {
	n := name("k")
	p := newRecurring(n, epoch, "*/10 * * * * *")
	f.put(p)
	planned := len(p.Occurrences)
	f.expectCounts("at first", n, planned, 0, 0, 0)
	delivered := len(f.drainUpTo(p.Job.Cursor))
	now := p.Job.Cursor.Add(time.Minute)
	j, token := f.claimJob(now)
	a := advanceOf(j, token, now)
	if a.Missed == 0 || a.Trouble.IsZero() || len(a.Occurrences) == 0 {
		f.Fatalf("%d missed, trouble %v, %d occurrences", a.Missed, a.Trouble, len(a.Occurrences))
	}
	f.advance(a)
	f.advance(a)
	planned += len(a.Occurrences) + a.Missed
	f.expectCounts("advanced", n, planned, delivered, 0, a.Missed)
	expect(f, "trouble", f.job(n).Trouble, a.Trouble)
	delivered += len(f.drainUpTo(a.Cursor))
	f.expectCounts("delivered", n, planned, delivered, 0, a.Missed)
}

// drainUpTo claims and acknowledges the due occurrences.
func (f *fixture) drainUpTo(now time.Time) (all []store.Claimed) {
	f.Helper()
	for {
		some := f.claim(now, 50)
		if len(some) == 0 {
			return all
		}
		for _, c := range some {
			f.settle(settlement(c, store.Ack))
		}
		all = append(all, some...)
	}
}

func testOutcomesMoved(f *fixture) {
	n := name("k")
	f.put(newPut(n, epoch, 0, time.Second, 2*time.Second, time.Hour))
	held := f.claim(epoch.Add(time.Minute), 10)
	for i, outcome := range []store.Outcome{store.Ack, store.Bury, store.Miss} {
		f.end(held[i], outcome, epoch.Add(time.Minute), "refused")
	}
	f.expectCounts("here", n, 4, 1, 1, 1)
	var records []store.Document
	for place := store.Place(""); ; {
		page, next, err := f.store().Export(f.Context(), place, 100)
		f.must(err)
		if len(page) == 0 {
			break
		}
		records, place = append(records, page...), next
	}
	there := f.another()
	_, err := there.store().Import(f.Context(), records)
	f.must(err)
	there.expectCounts("there", n, 4, 1, 1, 1)
	expect(f, "trouble there", there.job(n).Trouble, f.job(n).Trouble)
}
