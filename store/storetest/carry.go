package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var carryTests = []namedTest{
	{"a put replaces only the version that it was made from", testFrom},
	{"a put replaces only the cursor that it was made from", testFromCursor},
	{"instants of both jobs are carried over", testCarry},
	{"a held occurrence is carried over with its claim", testCarryHeld},
	{"a stale occurrence is carried over", testCarryStale},
	{"an occurrence settled meanwhile is not carried over", testCarrySettled},
	{"a refused carry changes nothing", testCarryRefused},
	{"a carry of another job's occurrences", testCarryForeign},
	{"a carried-over occurrence is carried over again", testCarryAgain},
	{"a carried-over occurrence is cancelled with its job", testCarryCancelled},
	{"a carried-over occurrence is replaced with its job", testCarryReplaced},
	{"a carried-over occurrence keeps its job", testCarryKeeps},
	{"a carried-over occurrence gets the new priority unless it is held", testCarryPriority},
	{"parts of a sequence are carried over", testCarryParts},
	{"ticks are carried over", testCarryRecurring},
	{"carried-over occurrences are paused and resumed", testCarryPaused},
	{"many occurrences are carried over", testCarryMany},
	{"carried-over occurrences are exported and imported", testCarryMoved},
	{"each instant fires once while claims and carries race", testCarryRace},
}

// replacing returns a put that replaces the job of another put, and carries over all instants that both have.
func replacing(before, p store.Put) store.Put {
	ids := map[job.ID]job.ID{}
	for _, o := range before.Occurrences {
		ids[o.DeliveryID()] = o.ID
	}
	for _, c := range before.Carried {
		ids[c.As.DeliveryID()] = c.ID
	}
	fresh := p.Occurrences
	p.From, p.Occurrences = store.Replaced{Version: before.Job.Version, Cursor: before.Job.Cursor}, nil
	for _, o := range fresh {
		if id, both := ids[o.DeliveryID()]; both {
			p.Carried = append(p.Carried, store.Carried{ID: id, As: o})
		} else {
			p.Occurrences = append(p.Occurrences, o)
		}
	}
	return p
}

// edited returns a submission at now of a job with other callback data, and with instants at these offsets from the
// epoch.
func edited(n job.Name, now time.Time, after ...time.Duration) store.Put {
	j := newPut(n, now).Job
	j.Callback.Data = fmt.Appendf(nil, `{"payload":"edited at %s"}`, job.FormatTime(now))
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, epoch.Add(d))
	}
	return begin(j, now)
}

// byTime returns the occurrence with this instant, as an offset from the epoch.
func byTime(f *fixture, all []job.Occurrence, after time.Duration) job.Occurrence {
	f.Helper()
	for _, o := range all {
		if o.Timestamp.Equal(epoch.Add(after)) {
			return o
		}
	}
	f.Fatalf("there is none for %s among %d", after, len(all))
	return job.Occurrence{}
}

func testFrom(f *fixture) {
	there := newPut(name("there"), epoch, time.Hour)
	f.put(there)
	for _, c := range []struct {
		what, key string
		from      store.Replaced
	}{
		{"another version", "there", store.Replaced{Version: job.NewRevision(epoch)}},
		{"a cursor of one that has none", "there", store.Replaced{Version: there.Job.Version, Cursor: epoch}},
		{"of none", "none", store.Replaced{Version: there.Job.Version}},
	} {
		before, beforeErr := store.ReadJob(f.Context(), f.store(), name(c.key))
		p := newPut(name(c.key), epoch, 2*time.Hour)
		p.From = c.from
		result := f.store().Put(f.Context(), []store.Put{p})[0]
		expect(f, c.what+": precondition failed", errors.Is(result.Err, store.ErrPrecondition), true)
		after, afterErr := store.ReadJob(f.Context(), f.store(), name(c.key))
		expect(f, c.what+": exists", afterErr == nil, beforeErr == nil)
		expectSame(f, c.what+": the job", after, before)
	}
	changed := f.pause(name("there"), epoch)
	p := newPut(name("there"), epoch, 2*time.Hour)
	p.From = store.Replaced{Version: there.Job.Version}
	expect(f, "of a version before a change",
		errors.Is(f.store().Put(f.Context(), []store.Put{p})[0].Err, store.ErrPrecondition), true)
	f.resume(name("there"), epoch)
	p.From.Version = changed
	expect(f, "of one in between", errors.Is(f.store().Put(f.Context(), []store.Put{p})[0].Err, store.ErrPrecondition),
		true)
	p.From.Version = f.job(name("there")).Version
	expect(f, "replaced", f.put(p).Replaced, there.Job.Revision)
	f.expectTimes("all that can be claimed", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime),
		epoch.Add(2*time.Hour))
}

func testFromCursor(f *fixture) {
	there := newRecurring(name("k"), epoch, "@every 10s")
	f.put(there)
	p := newRecurring(name("k"), epoch.Add(time.Second), "@every 7s")
	for what, cursor := range map[string]time.Time{
		"no cursor":      {},
		"another cursor": there.Job.Cursor.Add(10 * time.Second),
	} {
		p.From = store.Replaced{Version: there.Job.Version, Cursor: cursor}
		expect(f, what, errors.Is(f.store().Put(f.Context(), []store.Put{p})[0].Err, store.ErrPrecondition), true)
	}
	// An advance moves the cursor and keeps the version.
	j, token := f.claimJob(there.Job.ExpandAt)
	f.advance(advanceOf(j, token, there.Job.ExpandAt))
	p.From = store.Replaced{Version: there.Job.Version, Cursor: there.Job.Cursor}
	expect(f, "the cursor before an advance",
		errors.Is(f.store().Put(f.Context(), []store.Put{p})[0].Err, store.ErrPrecondition), true)
	p.From.Cursor = f.job(name("k")).Cursor
	expect(f, "replaced", f.put(p).Replaced, there.Job.Revision)
}

func testCarry(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Minute, time.Hour)
	f.put(first)
	f.put(newPut(name("other"), epoch, time.Hour))
	retried := f.claimOne(epoch)
	s := settlement(retried, store.Retry)
	f.settle(s)
	before := f.pending(name("k"))

	later := epoch.Add(time.Second)
	second := replacing(first, edited(name("k"), later, 0, time.Minute, 2*time.Hour))
	result := f.put(second)
	expect(f, "replaced", result.Replaced, first.Job.Revision)
	expect(f, "carried", result.Carried, 2)
	expect(f, "in flight", result.InFlight, 0)

	got := f.job(name("k"))
	expect(f, "revision", got.Revision, second.Job.Revision)
	expect(f, "live", got.Live(), true)
	pending := f.pending(name("k"))
	f.expectTimes("pending", timestamps(pending, occurrenceTime), epoch, epoch.Add(time.Minute), epoch.Add(2*time.Hour))
	for _, after := range []time.Duration{0, time.Minute} {
		want := byTime(f, before, after)
		want.Revision = second.Job.Revision
		expectSame(f, "carried one", byTime(f, pending, after), want)
	}
	fired := f.drain(epoch.Add(24 * time.Hour))
	f.expectTimes("fired", timestamps(fired, claimedTime), epoch, epoch.Add(time.Minute), epoch.Add(2*time.Hour),
		epoch.Add(time.Hour))
	for _, c := range fired {
		if c.Name != name("k") {
			continue
		}
		expect(f, "callback", string(c.Callback.Data), string(second.Job.Callback.Data))
		expect(f, "claimed revision", c.Revision, second.Job.Revision)
		if c.ID == retried.ID {
			expect(f, "attempt of the one that was retried", c.Attempt, 2)
			expect(f, "its last error", c.LastError, "it failed")
		}
	}
	expect(f, "live at the end", f.job(name("k")).Live(), false)
}

// testCarryHeld: the outcome of a held occurrence counts, although its settlement names the replaced revision.
func testCarryHeld(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss} {
		n := name(fmt.Sprint("k", i))
		first := newPut(n, epoch, 0, time.Hour)
		f.put(first)
		held := f.claimOne(epoch)
		before := f.pending(n)
		later := epoch.Add(time.Second)
		second := replacing(first, edited(n, later, 0, time.Hour, 2*time.Hour))
		result := f.put(second)
		expect(f, "carried", result.Carried, 2)
		expect(f, "in flight", result.InFlight, 1)

		want := byTime(f, before, 0)
		want.Revision = second.Job.Revision
		expectSame(f, "held one", byTime(f, f.pending(n), 0), want)
		expect(f, "claimed meanwhile", len(f.claim(later, 10)), 0)

		s := settlement(held, outcome)
		s.DueAt, s.KeepUntil = epoch.Add(time.Minute), epoch.Add(48*time.Hour)
		for range 2 { // settling twice has the same effect as settling once
			f.settle(s)
			rest := []time.Time{epoch.Add(time.Hour), epoch.Add(2 * time.Hour)}
			if outcome == store.Retry || outcome == store.Release {
				rest = append(rest, epoch)
			}
			f.expectTimes("pending", timestamps(f.pending(n), occurrenceTime), rest...)
			dead := f.deadLetters(store.DeadLetterFilter{Key: n.Key})
			expect(f, "dead letters", len(dead), map[store.Outcome]int{store.Bury: 1}[outcome])
			expect(f, "missed", f.job(n).Missed, map[store.Outcome]int{store.Miss: 1}[outcome])
		}
		switch outcome {
		case store.Retry, store.Release:
			expect(f, "expires", f.job(n).ExpiresAt, s.KeepUntil)
			again := f.claimOne(s.DueAt)
			expect(f, "claimed again", again.ID, held.ID)
			expect(f, "attempt", again.Attempt, map[store.Outcome]int{store.Retry: 2, store.Release: 1}[outcome])
			expect(f, "callback", string(again.Callback.Data), string(second.Job.Callback.Data))
			expect(f, "claimed revision", again.Revision, second.Job.Revision)
			expect(f, "reclaimed", again.Reclaimed, false)
		case store.Bury:
			dead := f.deadLetters(store.DeadLetterFilter{Key: n.Key})
			expect(f, "dead letter", dead[0].ID, held.ID)
			expect(f, "its callback", string(dead[0].Own.Callback.Data), string(first.Job.Callback.Data))
			expect(f, "redriven", f.redrive(held.ID), 1)
		case store.Ack, store.Miss:
		}
		f.cancel(n)
	}
}

// testCarryStale: an occurrence whose lease has run out is claimed again under the new job, and its first claim no
// longer counts.
func testCarryStale(f *fixture) {
	first := newPut(name("k"), epoch, 0)
	f.put(first)
	stale := f.claimOne(epoch)
	later := epoch.Add(lease)
	second := replacing(first, edited(name("k"), later, 0))
	result := f.put(second)
	expect(f, "carried", result.Carried, 1)
	expect(f, "in flight after the lease", result.InFlight, 0)
	again := f.claimOne(later)
	expect(f, "reclaimed", again.Reclaimed, true)
	expect(f, "attempt", again.Attempt, 2)
	expect(f, "callback", string(again.Callback.Data), string(second.Job.Callback.Data))
	f.settle(settlement(stale, store.Ack))
	expect(f, "left by a stale settlement", len(f.pending(name("k"))), 1)
	f.settle(settlement(again, store.Ack))
	expect(f, "left by the right one", len(f.pending(name("k"))), 0)
}

// testCarrySettled: an occurrence that is settled between the making of the put and its execution is not inserted
// again.
func testCarrySettled(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Bury, store.Miss, store.Retry, store.Release} {
		n := name(fmt.Sprint("k", i))
		first := newPut(n, epoch, 0, time.Hour)
		f.put(first)
		second := replacing(first, edited(n, epoch.Add(time.Second), 0, time.Hour))
		f.settle(settlement(f.claimOne(epoch), outcome))
		again := outcome == store.Retry || outcome == store.Release
		result := f.put(second)
		expect(f, "carried", result.Carried, 1+map[bool]int{true: 1}[again])
		expect(f, "in flight", result.InFlight, 0)
		want := []time.Time{epoch.Add(time.Hour)}
		if again {
			want = append(want, epoch)
		}
		f.expectTimes("pending", timestamps(f.pending(n), occurrenceTime), want...)
		expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{Key: n.Key})),
			map[store.Outcome]int{store.Bury: 1}[outcome])
		f.expectTimes("fired", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime), want...)
	}
}

func testCarryRefused(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Hour)
	f.put(first)
	held := f.claimOne(epoch)
	stale := replacing(first, edited(name("k"), epoch.Add(time.Second), 0, time.Hour, 2*time.Hour))
	version := f.pause(name("k"), epoch)
	before, pending := f.job(name("k")), f.pending(name("k"))
	superseded := stale
	superseded.From.Version = version
	superseded.Newer = store.Span{After: job.NewRevision(epoch.Add(-time.Second)), Until: version}
	for _, c := range []struct {
		p    store.Put
		want error
	}{{stale, store.ErrPrecondition}, {superseded, store.ErrSuperseded}} {
		result := f.store().Put(f.Context(), []store.Put{c.p})[0]
		if !errors.Is(result.Err, c.want) {
			f.Errorf("put answers %v, want %v", result.Err, c.want)
		}
		expect(f, "carried", result.Carried, 0)
		expectSame(f, "the job", f.job(name("k")), before)
		expectSame(f, "its pending occurrences", f.pending(name("k")), pending)
	}
	f.resume(name("k"), epoch)
	f.settle(settlement(held, store.Ack))
	f.expectTimes("fired", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime), epoch.Add(time.Hour))
}

// testCarryForeign: an occurrence of another job, or a standalone one, is not carried over, even if the put names it.
func testCarryForeign(f *fixture) {
	first, other := newPut(name("k"), epoch, time.Hour), newPut(name("other"), epoch, time.Hour)
	f.put(first)
	f.put(other)
	f.trigger(trigger(name("k"), epoch.Add(time.Hour), 1))
	buried := f.bury(name("dead"), epoch)
	p := replacing(first, edited(name("k"), epoch.Add(time.Second), time.Hour, 2*time.Hour))
	as := p.Carried[0].As
	for _, id := range []job.ID{other.Occurrences[0].ID, trigger(name("k"), epoch.Add(time.Hour), 1).ID, buried.ID,
		as.ID} {
		p.Carried = append(p.Carried, store.Carried{ID: id, As: as})
	}
	expect(f, "carried", f.put(p).Carried, 1)
	expect(f, "pending of the other", len(f.pending(name("other"))), 1)
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 1)
	expect(f, "cancelled with the standalone one", f.cancel(name("k"))[0],
		store.CancelResult{Found: true, Cancelled: 3})
}

func testCarryAgain(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Minute, time.Hour)
	f.put(first)
	held := f.claimOne(epoch)
	second := replacing(first, edited(name("k"), epoch.Add(time.Second), 0, time.Minute, time.Hour, 2*time.Hour))
	expect(f, "carried", f.put(second).Carried, 3)
	third := replacing(second, edited(name("k"), epoch.Add(2*time.Second), 0, time.Minute, 2*time.Hour))
	result := f.put(third)
	expect(f, "carried again", result.Carried, 3)
	expect(f, "in flight", result.InFlight, 1)
	pending := f.pending(name("k"))
	f.expectTimes("pending", timestamps(pending, occurrenceTime), epoch, epoch.Add(time.Minute), epoch.Add(2*time.Hour))
	expect(f, "id", byTime(f, pending, time.Minute).ID, byTime(f, first.Occurrences, time.Minute).ID)
	expect(f, "token", byTime(f, pending, 0).Token, held.Token)
	f.settle(settlement(held, store.Ack))
	fired := f.drain(epoch.Add(24 * time.Hour))
	f.expectTimes("fired", timestamps(fired, claimedTime), epoch.Add(time.Minute), epoch.Add(2*time.Hour))
	for _, c := range fired {
		expect(f, "callback", string(c.Callback.Data), string(third.Job.Callback.Data))
	}
}

func testCarryCancelled(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Minute, time.Hour)
	f.put(first)
	held := f.claimOne(epoch)
	f.put(replacing(first, edited(name("k"), epoch, 0, time.Minute, time.Hour, 2*time.Hour)))
	expect(f, "result", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 3, InFlight: 1})
	f.settle(settlement(held, store.Retry))
	expect(f, "claimed after all", len(f.drain(epoch.Add(24*time.Hour))), 0)
	expect(f, "pending of a new one", f.put(newPut(name("k"), epoch, 0)).Replaced, "")
	expect(f, "fired of the new one", len(f.drain(epoch)), 1)
}

// testCarryReplaced: an occurrence that a later replacement lacks is deleted, and its outcome changes nothing.
func testCarryReplaced(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Minute)
	f.put(first)
	held := f.claimOne(epoch)
	f.put(replacing(first, edited(name("k"), epoch, 0, time.Minute)))
	result := f.put(edited(name("k"), epoch, time.Hour))
	expect(f, "in flight", result.InFlight, 1)
	expect(f, "carried", result.Carried, 0)
	f.settle(settlement(held, store.Retry))
	f.expectTimes("fired", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime), epoch.Add(time.Hour))
}

func testCarryKeeps(f *fixture) {
	first := newPut(name("k"), epoch, time.Hour)
	f.put(first)
	second := edited(name("k"), epoch, time.Hour)
	second.Job.ExpiresAt = epoch
	f.put(replacing(first, second))
	sweep := func(now time.Time) int {
		swept, err := f.store().Sweep(f.Context(), store.SweepParams{Now: now, Again: time.Minute, Limit: 10})
		f.must(err)
		return swept.Jobs
	}
	expect(f, "live", f.job(name("k")).Live(), true)
	expect(f, "swept while something is pending", sweep(epoch.Add(time.Second)), 0)
	expect(f, "fired", len(f.drain(epoch.Add(time.Hour))), 1)
	expect(f, "live at the end", f.job(name("k")).Live(), false)
	expect(f, "swept", sweep(epoch.Add(2*time.Hour)), 1)
}

func testCarryPriority(f *fixture) {
	first := in(acme, "k", epoch, 0, time.Minute, time.Hour)
	f.put(first)
	n := first.Job.Name
	held := f.claimOne(epoch)
	edit := edited(n, epoch, 0, time.Minute, time.Hour)
	edit.Job.Options.Priority = job.PriorityHigh
	second := replacing(first, begin(edit.Job, epoch))
	expect(f, "carried", f.put(second).Carried, 3)
	pending := f.pending(n)
	expect(f, "priority of the held one", byTime(f, pending, 0).Priority, job.PriorityDefault)
	expect(f, "priority of the others", byTime(f, pending, time.Minute).Priority, job.PriorityHigh)
	expectSame(f, "lanes", f.lanes(), map[string]time.Duration{acme.String(): lease, acmeHigh.String(): time.Minute})
	claim := f.claimOf(epoch.Add(time.Minute-time.Millisecond), store.Quota{Lane: acme, Limit: 10},
		store.Quota{Lane: acmeHigh, Limit: 10})
	expect(f, "claimed too early", len(claim.Occurrences), 0)
	s := settlement(held, store.Retry)
	s.DueAt = epoch.Add(time.Minute)
	f.settle(s)
	claim = f.claimOf(epoch.Add(time.Minute), store.Quota{Lane: acme, Limit: 10}, store.Quota{Lane: acmeHigh, Limit: 10})
	if len(claim.Occurrences) != 2 {
		f.Fatalf("claimed %d, want 2", len(claim.Occurrences))
	}
	expect(f, "claimed of its old lane", claim.Occurrences[0].ID, held.ID)
	for _, c := range claim.Occurrences {
		expect(f, "callback", string(c.Callback.Data), string(second.Job.Callback.Data))
		f.settle(settlement(c, store.Ack))
	}
	f.expectTimes("pending", timestamps(f.pending(n), occurrenceTime), epoch.Add(time.Hour))
}

// testCarryParts: a part gets its position and step in the new sequence.
func testCarryParts(f *fixture) {
	first := newSequence(name("k"), epoch, `["a","b"]`)
	f.put(first)
	fired := map[job.ID]int{}
	for _, c := range f.claim(epoch, 1) { // one subscriber's occurrence of the first step
		fired[c.DeliveryID()]++
		f.settle(settlement(c, store.Ack))
	}
	// The wait of a minute becomes two of half a minute, so the second job step has another index in the list.
	draft, err := job.Decode([]byte(`{"key":"k","timezone":"Europe/Paris","subscribers":["b","c"],
		"startAt":"` + job.FormatTime(epoch) + `","steps":[
		{"type":"job"},{"type":"wait_certain_period","delay_period":30,"delay_unit":"second"},
		{"type":"wait_certain_period","delay_period":30,"delay_unit":"second"},{"type":"job","metadata":{"new":1}}],
		"callback":{"type":"http","data":{"url":"http://127.0.0.1/","payload":2}}}`))
	f.must(err)
	j, err := draft.Job(job.DefaultTenant, job.Limits{Instants: 1000, Payload: 1 << 20})
	f.must(err)
	j.Revision = job.NewRevision(epoch)
	j.Version, j.CreatedAt, j.UpdatedAt, j.ExpiresAt = j.Revision, epoch, epoch, epoch
	second := replacing(first, begin(j, epoch))
	expect(f, "named", len(second.Carried), 2)
	result := f.put(second)
	want := map[job.ID]job.Occurrence{}
	for _, o := range second.Occurrences {
		want[o.DeliveryID()] = o
	}
	for _, c := range second.Carried {
		if fired[c.As.DeliveryID()] == 0 {
			want[c.As.DeliveryID()] = c.As
		}
	}
	expect(f, "carried", result.Carried, len(want)-len(second.Occurrences))
	for _, o := range f.pending(name("k")) {
		expectPart(f, "listed part", o, want[o.DeliveryID()])
	}
	all := f.drain(epoch.Add(time.Hour))
	expect(f, "fired", len(all), len(want))
	for _, c := range all {
		expectPart(f, "claimed part", c.Occurrence, want[c.DeliveryID()])
		expect(f, "payload", string(c.Payload(c.Options)), map[int]string{3: `{"new":1}`}[c.Part.Step])
	}
}

func testCarryRecurring(f *fixture) {
	first := newRecurring(name("k"), epoch, "@every 5s")
	f.put(first)
	delivered := f.claimOne(epoch.Add(5 * time.Second))
	f.settle(settlement(delivered, store.Ack))
	now := epoch.Add(6 * time.Second)

	// The same crontab again: the stored occurrences stay, and so does the cursor.
	again := newRecurring(name("k"), now, "@every 5s")
	again.Job.Callback.Data = []byte(`{"payload":"edited"}`)
	again.Job.Schedule.Anchor = first.Job.Schedule.Anchor
	again.Job.Cursor, again.Job.ExpandAt = first.Job.Cursor, first.Job.ExpandAt
	again.Job.Options.Recurrence = first.Job.Options.Recurrence
	again.Occurrences = nil
	for _, o := range first.Occurrences {
		o.Revision = again.Job.Revision
		again.Occurrences = append(again.Occurrences, o)
	}
	second := replacing(first, again)
	expect(f, "fresh", len(second.Occurrences), 0)
	expect(f, "carried", f.put(second).Carried, len(first.Occurrences)-1)
	got := f.job(name("k"))
	expect(f, "cursor", got.Cursor, first.Job.Cursor)
	expect(f, "expand at", got.ExpandAt, first.Job.ExpandAt)

	j, token := f.claimJob(got.ExpandAt)
	advance := advanceOf(j, token, got.ExpandAt)
	f.advance(advance)
	fired := f.drainUntil(advance.Cursor)
	f.expectTimes("fired", timestamps(fired, claimedTime),
		ticks(epoch.Add(5*time.Second), 5*time.Second, advance.Cursor)...)
	for _, c := range fired {
		expect(f, "callback", string(c.Callback.Data), `{"payload":"edited"}`)
		expect(f, "claimed revision", c.Revision, second.Job.Revision)
	}
}

// drainUntil claims and acknowledges all due occurrences at a time.
func (f *fixture) drainUntil(now time.Time) (all []store.Claimed) {
	f.Helper()
	for more := true; more; {
		claim := f.tryClaim(now, 50)
		for _, c := range claim.Occurrences {
			f.settle(settlement(c, store.Ack))
		}
		all, more = append(all, claim.Occurrences...), claim.More()
	}
	return all
}

func testCarryPaused(f *fixture) {
	first := newPut(name("k"), epoch, time.Minute, time.Hour)
	f.put(first)
	first.Job.Version = f.pause(name("k"), epoch)
	expect(f, "claimed while paused", len(f.claim(epoch.Add(time.Minute), 10)), 0) // and the claim puts them back
	second := replacing(first, edited(name("k"), epoch, time.Minute, time.Hour, 2*time.Hour))
	result := f.put(second)
	expect(f, "carried", result.Carried, 2)
	expect(f, "paused", result.Paused, true)
	now := epoch.Add(2 * time.Minute)
	expect(f, "claimed while paused still", len(f.claim(now, 10)), 0)
	f.resume(name("k"), now)
	c := f.claimOne(now)
	expect(f, "claimed on resume", c.Timestamp, epoch.Add(time.Minute))
	f.settle(settlement(c, store.Ack))
	f.expectTimes("fired", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime), epoch.Add(time.Hour),
		epoch.Add(2*time.Hour))
}

func testCarryMany(f *fixture) {
	const n, held, acked = 1500, 100, 40
	after := make([]time.Duration, n)
	for i := range after {
		after[i] = time.Duration(i) * time.Millisecond
	}
	first := newPut(name("k"), epoch, after...)
	f.put(first)
	second := replacing(first, edited(name("k"), epoch.Add(time.Second), append(after, time.Hour)...))
	claimed := f.claim(epoch.Add(time.Minute), held)
	expect(f, "claimed", len(claimed), held)
	fired := map[int64]int{}
	for _, c := range claimed[:acked] {
		f.settle(settlement(c, store.Ack))
		fired[c.Timestamp.UnixMilli()]++
	}
	second.Now = epoch.Add(time.Minute)
	result := f.put(second)
	expect(f, "carried", result.Carried, n-acked)
	expect(f, "in flight", result.InFlight, held-acked)
	_, total, err := f.store().Occurrences(f.Context(),
		store.OccurrenceFilter{Name: name("k"), Revision: second.Job.Revision, Limit: 1, Count: true})
	f.must(err)
	expect(f, "pending", total, n-acked+1)
	for _, c := range claimed[acked:] {
		f.settle(settlement(c, store.Ack))
		fired[c.Timestamp.UnixMilli()]++
	}
	for now, more := epoch.Add(2*time.Hour), true; more; {
		claim := f.tryClaim(now, 500)
		var settlements []store.Settlement
		for _, c := range claim.Occurrences {
			settlements = append(settlements, settlement(c, store.Ack))
			fired[c.Timestamp.UnixMilli()]++
			if string(c.Callback.Data) != string(second.Job.Callback.Data) {
				f.Fatalf("%s came with the callback %s", c.Timestamp, c.Callback.Data)
			}
		}
		f.settle(settlements...)
		more = claim.More()
	}
	expect(f, "instants that fired", len(fired), n+1)
	for at, times := range fired {
		if times != 1 {
			f.Errorf("the instant %d fired %d times", at, times)
		}
	}
}

func testCarryMoved(f *fixture) {
	first := newPut(name("k"), epoch, 0, time.Minute, time.Hour)
	f.put(first)
	held := f.claimOne(epoch)
	second := replacing(first, edited(name("k"), epoch, 0, time.Minute, 2*time.Hour))
	f.put(second)
	records := f.export(10)
	to := f.another()
	inserted, err := to.store().Import(to.Context(), records)
	f.must(err)
	expect(f, "imported", inserted, 4)
	expectSame(f, "its pending occurrences", to.pending(name("k")), f.pending(name("k")))
	for _, g := range []*fixture{f, to} {
		g.settle(settlement(held, store.Ack))
		g.expectTimes("fired", timestamps(g.drain(epoch.Add(24*time.Hour)), claimedTime), epoch.Add(time.Minute),
			epoch.Add(2*time.Hour))
	}
}

// testCarryRace: while the job is replaced repeatedly by similar ones, others claim and settle all its occurrences.
func testCarryRace(f *fixture) {
	const instants, rounds, claimers = 60, 15, 2
	after := make([]time.Duration, instants)
	for i := range after {
		after[i] = time.Duration(i) * time.Millisecond
	}
	last := newPut(name("k"), epoch, after...)
	f.put(last)
	putting := f.second()
	done := make(chan struct{})
	fired := make([][]store.Claimed, claimers)
	var group sync.WaitGroup
	group.Go(func() {
		defer close(done)
		for i := range rounds {
			p := replacing(last, edited(name("k"), epoch.Add(time.Duration(i+1)*time.Millisecond), after...))
			ctx, cancel := context.WithTimeout(f.Context(), store.Within)
			result := putting.Put(ctx, []store.Put{p})[0]
			cancel()
			if result.Err != nil {
				f.Errorf("put: %v", result.Err)
				return
			}
			last = p
		}
	})
	for i := range claimers {
		s := f.handle()
		group.Go(func() {
			// The revisions are so old that an orphan would be dropped at once.
			for now := epoch.Add(2 * time.Hour); ; now = now.Add(20 * time.Millisecond) { // past the put-back times
				params := claimParams(now, 2)
				params.Lease = 24 * time.Hour
				claim, err := s.Claim(f.Context(), params)
				if err != nil {
					f.Errorf("claim: %v", err)
					return
				}
				for k, c := range claim.Occurrences {
					outcome := store.Ack
					if k == 1 && c.Attempt == 1 {
						outcome = store.Retry
					} else {
						fired[i] = append(fired[i], c)
					}
					t := settlement(c, outcome)
					t.DueAt = now
					if err := s.Settle(f.Context(), []store.Settlement{t}); err != nil {
						f.Errorf("settle: %v", err)
						return
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	group.Wait()
	times := map[int64]int{}
	for _, all := range append(fired, f.drain(epoch.Add(48*time.Hour))) {
		for _, c := range all {
			times[c.Timestamp.UnixMilli()]++
		}
	}
	expect(f, "instants that fired", len(times), instants)
	for at, n := range times {
		if n != 1 {
			f.Errorf("the instant %d fired %d times", at, n)
		}
	}
	expect(f, "pending at the end", len(f.pending(name("k"))), 0)
	expect(f, "revision", f.job(name("k")).Revision, last.Job.Revision)
}
