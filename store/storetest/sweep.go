package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

var sweepTests = []namedTest{
	{"sweep removes expired jobs that have finished", testSweepJobs},
	{"sweep goes in batches", testSweepBatches},
	{"sweep removes old dead letters", testSweepDeadLetters},
	{"a sweep leaves jobs that are put meanwhile", testSweepRacingPuts},
}

func (f *fixture) sweep(p store.SweepParams) store.Swept {
	f.Helper()
	if p.Limit == 0 {
		p.Limit = 100
	}
	p.Again = time.Hour
	swept, err := f.store().Sweep(f.Context(), p)
	f.must(err)
	return swept
}

func testSweepJobs(f *fixture) {
	put := func(key string, expires time.Duration, after ...time.Duration) {
		p := newPut(name(key), epoch, after...)
		p.Job.ExpiresAt = epoch.Add(expires)
		f.put(p)
	}
	put("finished", time.Minute)
	put("live", time.Minute, 0)
	put("retained", time.Minute+time.Millisecond)
	now := epoch.Add(time.Minute)

	swept := f.sweep(store.SweepParams{Now: now})
	expect(f, "swept", swept, store.Swept{Jobs: 1})
	expect(f, "left", keys(f.jobs(store.JobFilter{})), `["live" "retained"]`)
	expect(f, "looked at again", f.job(name("live")).ExpiresAt, now.Add(time.Hour))
	expect(f, "live", f.job(name("live")).Live(), true)

	f.settle(settlement(f.claimOne(now), store.Ack))
	expect(f, "swept soon after", f.sweep(store.SweepParams{Now: now}), store.Swept{})
	expect(f, "swept in the end", f.sweep(store.SweepParams{Now: now.Add(time.Hour)}), store.Swept{Jobs: 2})
	expect(f, "left in the end", keys(f.jobs(store.JobFilter{})), `[]`)

	// A replacement has its own expiry.
	put("k", time.Minute)
	put("k", time.Hour)
	expect(f, "swept of a replaced job", f.sweep(store.SweepParams{Now: now}), store.Swept{})

	// A job with a held occurrence is live.
	put("held", 0, 0)
	f.claimOne(epoch)
	expect(f, "swept of a held job", f.sweep(store.SweepParams{Now: epoch}), store.Swept{})
}

func testSweepBatches(f *fixture) {
	for i := range 5 {
		f.put(newPut(name(fmt.Sprintf("k%d", i)), epoch.Add(time.Duration(i)*time.Second)))
	}
	expect(f, "first", f.sweep(store.SweepParams{Now: epoch.Add(time.Hour), Limit: 3}), store.Swept{Jobs: 3, More: true})
	expect(f, "left, the longest expired gone first", keys(f.jobs(store.JobFilter{})), `["k3" "k4"]`)
	expect(f, "second", f.sweep(store.SweepParams{Now: epoch.Add(time.Hour), Limit: 3}), store.Swept{Jobs: 2})
}

// testSweepRacingPuts: a job stays if it is put again while a sweep finds that it has finished.
func testSweepRacingPuts(f *fixture) {
	const jobs = 16
	handles := []store.Store{f.handle(), f.handle()}
	now := epoch.Add(time.Hour)
	var group sync.WaitGroup
	var after [jobs]store.Put
	var results [jobs]store.PutResult
	var swept store.Swept
	var err error
	for i := range jobs {
		n := name(fmt.Sprintf("k%d", i))
		f.putOn(handles[0], newPut(n, epoch))
		after[i] = newPut(n, now, time.Hour)
	}
	for i := range jobs {
		group.Go(func() { results[i] = handles[0].Put(f.Context(), []store.Put{after[i]})[0] })
	}
	group.Go(func() {
		swept, err = handles[1].Sweep(f.Context(), store.SweepParams{Now: now, Again: time.Hour, Limit: 100})
	})
	group.Wait()
	f.must(err)
	created := 0
	for i := range jobs {
		f.must(results[i].Err)
		if results[i].Replaced == "" {
			created++
		}
		expect(f, "version", f.job(after[i].Job.Name).Version, after[i].Job.Version)
	}
	expect(f, "jobs made anew, as many as were swept", created, swept.Jobs)
	expect(f, "fired", len(f.drain(now.Add(2*time.Hour))), jobs)
}

func testSweepDeadLetters(f *fixture) {
	f.bury(name("old"), epoch)
	f.bury(name("older"), epoch.Add(-time.Hour))
	f.bury(name("young"), epoch.Add(time.Hour))
	late := newPut(name("late"), epoch.Add(-48*time.Hour), 0) // an old instant with a recent failure
	f.put(late)
	c := f.claimOne(epoch)
	s := settlement(c, store.Bury)
	s.At = epoch.Add(time.Hour)
	f.settle(s)
	now := epoch.Add(-100 * time.Hour) // no job has expired

	expect(f, "swept without a bound", f.sweep(store.SweepParams{Now: now}), store.Swept{})
	bound := epoch.Add(time.Minute)
	expect(f, "first", f.sweep(store.SweepParams{Now: now, FailedBefore: bound, Limit: 1}),
		store.Swept{DeadLetters: 1, More: true})
	expect(f, "second", f.sweep(store.SweepParams{Now: now, FailedBefore: bound}), store.Swept{DeadLetters: 1})
	left := f.deadLetters(store.DeadLetterFilter{})
	if len(left) != 2 || left[0].Name.Key != "late" || left[1].Name.Key != "young" {
		f.Errorf("%d dead letters are left, want late and young", len(left))
	}
}
