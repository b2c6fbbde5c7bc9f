package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var countTests = []namedTest{
	{"lanes are counted up to a limit", testCountLanes},
	{"lanes are counted in many and in none", testCountManyLanes},
	{"lanes are counted with an ended context", testCountLanesEnded},
}

// counts returns the counts of lanes.
func (f *fixture) counts(now time.Time, limit int, lanes ...job.Lane) []store.Count {
	f.Helper()
	all, err := f.second().Count(f.Context(), now, lanes, limit)
	f.must(err)
	return all
}

func testCountLanes(f *fixture) {
	f.put(in(acmeHigh, "list", epoch, 0, time.Second, 2*time.Second, time.Hour))
	f.put(in(acme, "one", epoch, time.Second))
	f.put(in(acme, "dead", epoch, 0))
	c := f.claimOf(epoch, store.Quota{Lane: acme, Limit: 1})
	f.settle(settlement(c.Occurrences[0], store.Bury))
	lanes := []job.Lane{acmeLow, acmeHigh, acme}
	for _, c := range []struct {
		what  string
		now   time.Time
		limit int
		want  []store.Count
	}{
		{"before anything is due", epoch.Add(-1 * time.Millisecond), 10, []store.Count{{}, {Pending: 4}, {Pending: 1}}},
		{"one is due", epoch, 10, []store.Count{{}, {Pending: 4, Due: 1}, {Pending: 1}}},
		{"more are due", epoch.Add(time.Second), 10, []store.Count{{}, {Pending: 4, Due: 2}, {Pending: 1, Due: 1}}},
		{"as many as the limit", epoch.Add(time.Hour), 4, []store.Count{{}, {Pending: 4, Due: 4}, {Pending: 1, Due: 1}}},
		{"more than the limit are due", epoch.Add(time.Hour), 2,
			[]store.Count{{}, {Pending: 2, Due: 2}, {Pending: 1, Due: 1}}},
		{"more than the limit are pending", epoch.Add(time.Second), 3,
			[]store.Count{{}, {Pending: 3, Due: 2}, {Pending: 1, Due: 1}}},
	} {
		expectSame(f, c.what, f.counts(c.now, c.limit, lanes...), c.want)
	}
	f.claimOf(epoch.Add(time.Second), store.Quota{Lane: acmeHigh, Limit: 1})
	expectSame(f, "while one is held", f.counts(epoch.Add(time.Second), 10, acmeHigh), []store.Count{{Pending: 4, Due: 1}})
	expectSame(f, "once its lease has ended", f.counts(epoch.Add(time.Second+lease), 10, acmeHigh),
		[]store.Count{{Pending: 4, Due: 3}})
}

func testCountManyLanes(f *fixture) {
	expectSame(f, "of all of an empty store", f.counts(epoch, 1), []store.Count{{}})
	expectSame(f, "of an empty store", f.counts(epoch, 1, acme, acmeLow), []store.Count{{}, {}})
	want := make([]store.Count, len(lookalikes))
	for i, l := range lookalikes {
		var after []time.Duration
		for n := range i {
			after = append(after, time.Duration(n)*time.Second)
			want[i].Due++
		}
		want[i].Pending = i + 1
		f.put(in(l, "k"+l.String(), epoch, append(after, time.Hour)...))
	}
	expectSame(f, "of lanes whose names look alike", f.counts(epoch.Add(time.Minute), 100, lookalikes...), want)
	expectSame(f, "of one lane twice", f.counts(epoch.Add(time.Minute), 100, acme, acme), []store.Count{want[1], want[1]})
}

func testCountLanesEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store().Count(ended, epoch, []job.Lane{job.DefaultLane}, 1)
	expect(f, "it is unavailable", errors.Is(err, store.ErrUnavailable), true)
}
