package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var sampleTests = []namedTest{
	{"a sample has a lane's first occurrences", testSample},
	{"a sample of many jobs", testSampleMany},
	{"a sample has the targets of a claim", testSampleCallbacks},
	{"a sample with an ended context", testSampleEnded},
}

// sampled returns the sampled due times, as offsets from the epoch, each with its callback.
func (f *fixture) sampled(lane job.Lane, from time.Time, limit int) (all []string) {
	f.Helper()
	found, err := f.second().Sample(f.Context(), lane, from, limit)
	f.must(err)
	for _, o := range found {
		all = append(all, sampleText(o.DueAt, o.Callback))
	}
	return all
}

func sampleText(at time.Time, c job.Callback) string {
	return fmt.Sprintf("%s %s %s", at.Sub(epoch), c.Type, c.Data)
}

func testSample(f *fixture) {
	expectSame(f, "of an empty store", f.sampled(acme, epoch, 10), nil)
	p := in(acmeHigh, "k", epoch, 0, time.Second, 2*time.Second, time.Hour)
	f.put(p)
	f.put(in(acme, "beside", epoch, time.Second))
	f.put(in(acme, "dead", epoch, 0))
	c := f.claimOf(epoch, store.Quota{Lane: acme, Limit: 1})
	f.settle(settlement(c.Occurrences[0], store.Bury))
	of := func(after ...time.Duration) (all []string) {
		for _, d := range after {
			all = append(all, sampleText(epoch.Add(d), p.Job.Callback))
		}
		return all
	}
	for _, c := range []struct {
		what  string
		from  time.Time
		limit int
		want  []string
	}{
		{"from the beginning of time", time.Time{}, 10, of(0, time.Second, 2*time.Second, time.Hour)},
		{"up to the limit", time.Time{}, 2, of(0, time.Second)},
		{"as many as the limit", time.Time{}, 4, of(0, time.Second, 2*time.Second, time.Hour)},
		{"from the very time", epoch.Add(time.Second), 2, of(time.Second, 2*time.Second)},
		{"from just after it", epoch.Add(time.Second + time.Millisecond), 10, of(2*time.Second, time.Hour)},
		{"after the last", epoch.Add(time.Hour + time.Millisecond), 10, nil},
	} {
		expectSame(f, c.what, f.sampled(acmeHigh, c.from, c.limit), c.want)
	}
	f.claimOf(epoch, store.Quota{Lane: acmeHigh, Limit: 1})
	expectSame(f, "while one is held", f.sampled(acmeHigh, epoch, 10), of(time.Second, 2*time.Second, lease, time.Hour))
	expectSame(f, "they are as they were", f.counts(epoch.Add(time.Second), 10, acmeHigh),
		[]store.Count{{Pending: 4, Due: 1}})
	expect(f, "beside a dead letter", len(f.sampled(acme, epoch, 10)), 1)
}

func testSampleMany(f *fixture) {
	const jobs, each = 40, 2
	var want []string
	for i := range jobs * each {
		p := in(acme, fmt.Sprint("k", i%jobs), epoch, time.Duration(i%jobs)*time.Second,
			time.Duration(i%jobs+jobs)*time.Second)
		want = append(want, sampleText(epoch.Add(time.Duration(i)*time.Second), p.Job.Callback))
		if i < jobs {
			f.put(p)
		}
	}
	for _, from := range []int{0, 1, jobs - 1, jobs, 63, len(want) - 1} {
		for _, limit := range []int{1, 2, 17, jobs, jobs * each, 1000} {
			got := f.sampled(acme, epoch.Add(time.Duration(from)*time.Second), limit)
			expectSame(f, fmt.Sprintf("%d from %d", limit, from), got, want[from:min(from+limit, len(want))])
		}
	}
	for i := range jobs {
		f.put(in(acmeLow, fmt.Sprint("at once", i), epoch, time.Minute))
	}
	for _, limit := range []int{1, 17, jobs, 1000} {
		got := map[string]bool{}
		for _, text := range f.sampled(acmeLow, epoch, limit) {
			got[text] = true
		}
		expect(f, fmt.Sprintf("%d of those at one time", limit), len(got), min(limit, jobs))
	}
}

func testSampleCallbacks(f *fixture) {
	n := job.Name{Tenant: "acme", Key: "k"}
	replaced := in(acme, "k", epoch, 0)
	replaced.Job.Callback.Data = []byte(`{"url":"http://replaced.example"}`)
	f.put(replaced)
	p := in(acme, "k", epoch, time.Second)
	f.put(p)
	f.pause(n, epoch)
	f.trigger(trigger(n, epoch.Add(2*time.Second), 0))
	f.put(in(acme, "cancelled", epoch, 0))
	f.cancel(job.Name{Tenant: "acme", Key: "cancelled"})
	expectSame(f, "sampled", f.sampled(acme, time.Time{}, 10), []string{
		sampleText(epoch.Add(time.Second), p.Job.Callback),
		sampleText(epoch.Add(2*time.Second), trigger(n, epoch, 0).Own.Callback),
	})
	f.claimOf(epoch.Add(time.Second), store.Quota{Lane: acme, Limit: 1})
	expect(f, "sampled when the paused one is put back", len(f.sampled(acme, epoch.Add(time.Second+time.Millisecond), 10)),
		2)
}

func testSampleEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store().Sample(ended, acme, epoch, 1)
	expect(f, "it is unavailable", errors.Is(err, store.ErrUnavailable), true)
}
