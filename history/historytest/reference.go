package historytest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// testReference makes the same random recordings, sweeps and queries on the store and on the reference store, and
// compares the answers. Each run makes the same ones. A long test makes twenty times as many, different in each run.
func testReference(f *fixture) {
	steps, seed := 60, uint64(1)
	if storetest.Long() {
		steps, seed = 20*steps, rand.Uint64()
		f.Logf("the seed is %d", seed)
	}
	c := &comparison{
		fixture: f, random: rand.New(rand.NewPCG(seed, 0)), now: epoch,
		reference: memory.New(), handles: []store.Store{f.handle(), f.handle()},
	}
	found := 0
	for range steps {
		switch c.random.IntN(5) {
		case 0:
			c.sweep()
		case 1, 2:
			c.record()
		default:
			found += c.query()
		}
		c.now = c.now.Add(oneOf(c, 0, time.Millisecond, time.Second, time.Minute, 5*time.Minute))
	}
	if found == 0 {
		f.Error("no query found anything: the test shows nothing")
	}
}

// comparison is a sequence of random operations on the reference store and, by two handles, on the store.
type comparison struct {
	*fixture
	random    *rand.Rand
	now       time.Time
	serial    int
	reference store.Store
	handles   []store.Store
}

// oneOf draws one of some values.
func oneOf[V any](c *comparison, values ...V) V { return values[c.random.IntN(len(values))] }

// record records the same few entries in both stores.
func (c *comparison) record() {
	var entries []history.Entry
	for range c.random.IntN(5) {
		c.serial++
		at := c.now.Add(-oneOf(c, 0, time.Second, time.Hour))
		e := history.Entry{
			Name: job.Name{Tenant: oneOf(c, job.DefaultTenant, "acme"), Key: oneOf(c, "a", "a/ü 🔔", "b")},
			At:   at, Kind: oneOf(c, history.Kinds()...), Request: fmt.Sprint(c.serial),
		}
		if e.Kind.Attempt() {
			e.Instant, e.Attempt, e.Claimed, e.Error, e.Request = at, c.serial, at, oneOf(c, "", "hung up"), ""
		}
		entries = append(entries, e)
	}
	for _, s := range []store.Store{c.reference, oneOf(c, c.handles...)} {
		w := newWriter(s, c.now)
		w.Record(pointers(entries)...)
		c.must(w.Close())
	}
}

// query compares the answers to a question, and returns the number of entries.
func (c *comparison) query() int {
	filter := history.Filter{
		Tenant: oneOf(c, job.DefaultTenant, "acme"), Key: oneOf(c, "", "a"),
		Kinds: oneOf(c, nil, []history.Kind{history.Delivered}, []history.Kind{history.Buried, history.Created}),
		Since: oneOf(c, time.Time{}, c.now.Add(-time.Minute)),
	}
	want, wantGap := c.told(c.reference, filter, c.now)
	got, gap := c.told(oneOf(c, c.handles...), filter, c.now)
	if !slices.Equal(got, want) || (gap == nil) != (wantGap == nil) {
		c.Fatalf("%+v at %s:\nthe store has     %q, gap %v\nthe reference has %q, gap %v",
			filter, job.FormatTime(c.now), got, gap, want, wantGap)
	}
	return len(got)
}

// sweep sweeps both until there is no more to sweep.
func (c *comparison) sweep() {
	for _, s := range []store.Store{c.reference, oneOf(c, c.handles...)} {
		for more := true; more; {
			swept, err := s.Sweep(c.Context(), store.SweepParams{Now: c.now, Again: time.Minute, Limit: 3})
			c.must(err)
			more = swept.More
		}
	}
}
