package handlers_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// placer is a sender whose data are the destination.
type placer struct{ sender }

func (placer) Destination(data []byte) string { return string(data) }

// A small backlog is reported exactly, also for destinations to which this replica has sent nothing.
func TestBacklogByDestination(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) {
		c.Callbacks = callbacks.NewRegistry(placer{"http"}, placer{"rabbitmq"})
		c.Destinations = func() []handlers.DestinationState {
			return []handlers.DestinationState{{Name: `http "b"`, InFlight: 1}, {Name: `http "idle"`, Parked: 1}}
		}
	})
	for _, submitted := range []struct{ tenant, key, kind, to string }{
		{"acme", "1", "http", "a"}, {"acme", "2", "http", "b"}, {"acme", "3", "rabbitmq", "a"}, {"other", "4", "http", "b"},
	} {
		callback := map[string]any{"type": submitted.kind, "data": submitted.to}
		text := with(body(submitted.key, 0, time.Second, time.Hour), "callback", callback)
		a.call("POST", "/v1/jobs", text, "Carillon-Tenant: "+submitted.tenant).want(201)
	}
	a.advance(time.Second)
	expectDestinations(t, a.backlog(""), []destination{
		{Name: `http "b"`, Due: 4, Pending: 6, InFlight: 1}, {Name: `http "a"`, Due: 2, Pending: 3},
		{Name: `rabbitmq "a"`, Due: 2, Pending: 3}, {Name: `http "idle"`, Parked: 1},
	})
	if got := a.backlog("?limit=2").Destinations; len(got) != 2 || got[0].Name != `http "b"` {
		t.Errorf("of two destinations they are %+v", got)
	}
}

func expectDestinations(t *testing.T, got backlog, want []destination) {
	t.Helper()
	if !slices.Equal(got.Destinations, want) {
		t.Errorf("the destinations are\n%+v\nwant\n%+v", got.Destinations, want)
	}
}

// A large backlog is divided among destinations by a sample, and the parts add up to the whole.
func TestBacklogByDestinationOfMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	const day = 24 * time.Hour
	ab := func(i int) string { return []string{"a", "b", "a", "a"}[i%4] }
	always := func(name string) func(int) string { return func(int) string { return name } }
	tenants := func(n int, add func(h *heap, lane job.Lane, i int)) func(*heap) {
		return func(h *heap) {
			for i := range n {
				add(h, job.Lane{Tenant: fmt.Sprint("t", i)}, i)
			}
		}
	}
	for name, c := range map[string]struct {
		fill  func(*heap)
		exact bool
		// off is the permitted error of a figure, as a part of the whole.
		off float64
	}{
		"as much as the sample": {func(h *heap) { h.add(acmeLane, -time.Hour, 2*time.Second, 1000, ab) }, true, 0},
		"one more than that":    {func(h *heap) { h.add(acmeLane, -time.Hour, 4*time.Second, 1001, ab) }, false, 0.01},
		"a sample of two lanes": {tenants(2, func(h *heap, l job.Lane, i int) { h.add(l, -time.Hour, time.Second, 10+980*i, ab) }), true, 0},
		"much":                  {func(h *heap) { h.add(acmeLane, -time.Hour, 10*time.Millisecond, 100_000, ab) }, false, 0.01},
		"more than is counted":  {func(h *heap) { h.add(acmeLane, -time.Hour, time.Millisecond, 300_000, ab) }, false, 0.01},
		"what is due goes elsewhere than what is later": {func(h *heap) {
			h.add(acmeLane, -time.Hour, time.Second, 3000, always("a"))
			h.add(acmeLane, time.Second, time.Second, 6000, always("b"))
		}, false, 0},
		"what is due first goes elsewhere, and one is much older": {func(h *heap) {
			h.add(acmeLane, -day, 0, 1, always("c"))
			h.add(acmeLane, -time.Hour, time.Millisecond, 50_000, always("a"))
			h.add(acmeLane, -time.Minute, time.Millisecond, 50_000, always("b"))
		}, false, 0.01},
		"what is later goes elsewhere and elsewhere": {func(h *heap) {
			h.add(acmeLane, time.Second, time.Second, 10_000, func(i int) string { return []string{"a", "b"}[min(1, i/3000)] })
		}, false, 0.01},
		"one after the other at one moment": {func(h *heap) {
			h.add(acmeLane, -time.Hour, 0, 100, always("a"))
			h.add(acmeLane, -time.Hour, 0, 350, always("b"))
		}, true, 0},
		"many of them": {func(h *heap) {
			h.add(acmeLane, -time.Hour, 0, 200, always("a"))
			h.add(acmeLane, -time.Hour, 0, 4800, always("b"))
		}, false, 0.4},
		"at one moment": {func(h *heap) { h.add(acmeLane, -time.Hour, 0, 5000, ab) }, false, 0},
		"small lanes beside a large one": {tenants(50, func(h *heap, l job.Lane, i int) {
			if i == 7 {
				h.add(l, -time.Hour, time.Millisecond, 3000, always("large"))
			} else {
				h.add(l, -time.Hour, time.Second, 5, always(fmt.Sprint("small", i)))
			}
		}), false, 0},
		"more lanes than are sampled": {tenants(500, func(h *heap, l job.Lane, _ int) { h.add(l, -time.Hour, time.Second, 8, ab) }), false, 0.01},
		"many lanes, and little due":  {tenants(50, func(h *heap, l job.Lane, _ int) { h.add(l, -2*time.Second, time.Second, 400, ab) }), false, 0.05},
		"no sender for it":            {func(h *heap) { h.add(acmeLane, -time.Hour, time.Second, 9, always("kafka")) }, true, 0},
		"its job is gone":             {func(h *heap) { h.add(acmeLane, -time.Hour, time.Second, 9, always("")) }, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHeap(t)
			c.fill(h)
			a := newAPI(t, func(config *handlers.Config) {
				config.Inspector, config.Callbacks = h, callbacks.NewRegistry(placer{"http"})
			})
			got := a.backlog("?limit=1000")
			if h.sampled > 1000 || h.samples > 150 {
				t.Errorf("%d are sampled, by %d calls", h.sampled, h.samples)
			}
			var sum, all share
			for _, s := range got.Tenants {
				all.Due, all.Pending, all.AtLeast = all.Due+s.Due, all.Pending+s.Pending, all.AtLeast || s.AtLeast
			}
			want := h.byDestination()
			for _, d := range got.Destinations {
				sum.Due, sum.Pending, sum.AtLeast = sum.Due+d.Due, sum.Pending+d.Pending, sum.AtLeast || d.AtLeast
				if d.Estimated == c.exact {
					t.Errorf("it is %+v", d)
				}
				of, scale := want[d.Name], 1.0
				if all.AtLeast { // the count stopped at its bound
					scale = float64(all.Due) / float64(h.size())
				}
				far := func(got, want int) bool {
					return math.Abs(float64(got)-scale*float64(want)) > c.off*float64(all.Pending)
				}
				if far(d.Due, of.Due) || far(d.Pending, of.Pending) {
					t.Errorf("it is %+v, want about %+v", d, of)
				}
			}
			if len(want) > 0 && sum != all || len(got.Destinations) != len(want) {
				t.Errorf("the destinations have %+v, want %+v; they are %+v, want %+v", sum, all, got.Destinations, want)
			}
		})
	}
}

// The parts add up even if occurrences are claimed or given back between the count and the sample.
func TestBacklogByDestinationMeanwhile(t *testing.T) {
	t.Parallel()
	for _, moves := range []time.Duration{time.Hour, -2 * time.Hour} {
		h := newHeap(t)
		h.add(acmeLane, -3*time.Second, time.Second, 4, func(i int) string { return []string{"a", "b"}[i%2] })
		h.add(acmeLane, time.Hour, 0, 2, func(int) string { return "a" })
		h.moves = moves
		a := newAPI(t, func(c *handlers.Config) { c.Inspector, c.Callbacks = h, callbacks.NewRegistry(placer{"http"}) })
		var due, pending int
		for _, d := range a.backlog("").Destinations {
			due, pending = due+d.Due, pending+d.Pending
		}
		if due != 4 || pending != 6 {
			t.Errorf("when they become due %s later, %d are due and %d pending", moves, due, pending)
		}
	}
}

// The backlog of paused tenants takes no time to drain, however large it is.
func TestBacklogOfPausedDrainsNever(t *testing.T) {
	t.Parallel()
	h := newHeap(t)
	h.add(acmeLane, -time.Hour, time.Millisecond, 150_000, func(int) string { return "a" })
	h.add(job.DefaultLane, -time.Hour, time.Second, 30, func(int) string { return "a" })
	a := newAPI(t, func(c *handlers.Config) {
		c.Inspector, c.Callbacks, c.Rate = h, callbacks.NewRegistry(placer{"http"}), func() float64 { return 10 }
	})
	a.call("PUT", "/v1/tenants/acme", `{"paused":true}`).want(201)
	if got := a.backlog(""); got.DrainSeconds != 3 || !got.Tenants[0].AtLeast {
		t.Errorf("it drains in %d s, and the tenants are %+v", got.DrainSeconds, got.Tenants)
	}
}

var acmeLane = job.Lane{Tenant: "acme"}

// heap is a lanesInspector that has the occurrences that are added.
type heap struct {
	lanes map[job.Lane][]store.Sampled
	t     *testing.T
	until map[job.Lane]time.Time // by lane: the occurrences that are due before were sampled or skipped
	moves time.Duration          // added to the due times of samples, as if they had changed since the count

	samples, sampled int
}

func newHeap(t *testing.T) *heap {
	return &heap{lanes: map[job.Lane][]store.Sampled{}, until: map[job.Lane]time.Time{}, t: t}
}

// add adds n occurrences to the end of a lane. The first is due at the start plus after, and each other one apart
// later. The function to returns the callback of each.
func (h *heap) add(lane job.Lane, after, apart time.Duration, n int, to func(int) string) {
	for i := range n {
		c := job.Callback{Type: "http", Data: []byte(to(i))}
		switch to(i) {
		case "kafka":
			c.Type = "kafka"
		case "":
			c = job.Callback{}
		}
		h.lanes[lane] = append(h.lanes[lane], store.Sampled{DueAt: start.Add(after + time.Duration(i)*apart), Callback: c})
	}
}

func (h *heap) size() (n int) {
	for _, all := range h.lanes {
		n += len(all)
	}
	return n
}

// byDestination returns the true backlog.
func (h *heap) byDestination() map[string]share {
	want := map[string]share{}
	for _, all := range h.lanes {
		for _, o := range all {
			name := "http " + string(o.Callback.Data)
			switch o.Callback.Type {
			case "kafka":
				name = "kafka"
			case "":
				continue
			}
			has := want[name]
			has.Pending++
			if !o.DueAt.After(start) {
				has.Due++
			}
			want[name] = has
		}
	}
	return want
}

func (h *heap) countAll() (b store.Count) {
	for _, has := range h.byDestination() {
		b.Due, b.Pending = b.Due+has.Due, b.Pending+has.Pending
	}
	return b
}

func (h *heap) heads() (dues []store.LaneDue) {
	for lane, all := range h.lanes {
		dues = append(dues, store.LaneDue{Lane: lane, DueAt: all[0].DueAt})
	}
	return dues
}

func (h *heap) DueLanes(_ context.Context, p store.DueParams) (store.DuePage, error) {
	return duePage(h.heads(), p), nil
}

func (h *heap) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) > 0 {
		return h.countLanes(ctx, now, lanes, limit)
	}
	return []store.Count{h.countAll()}, nil
}

func (h *heap) countLanes(_ context.Context, now time.Time, lanes []job.Lane, limit int) (counts []store.Count, err error) {
	for _, lane := range lanes {
		all := h.lanes[lane]
		c := store.Count{Pending: min(limit, len(all))}
		for c.Due < c.Pending && !all[c.Due].DueAt.After(now) {
			c.Due++
		}
		counts = append(counts, c)
	}
	return counts, nil
}

func (h *heap) Sample(_ context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	all := h.lanes[lane]
	first, _ := slices.BinarySearchFunc(all, from, func(o store.Sampled, at time.Time) int { return o.DueAt.Compare(at) })
	found := slices.Clone(all[first:min(first+limit, len(all))])
	if limit < 1 || limit > 1000 || from.Before(h.until[lane]) {
		h.t.Errorf("%d of %s are sampled from %s, and before up to %s", limit, lane, from, h.until[lane])
	}
	if h.until[lane] = from; len(found) > 0 && found[len(found)-1].DueAt.After(found[0].DueAt) {
		h.until[lane] = found[len(found)-1].DueAt.Add(time.Millisecond)
	}
	for i := range found {
		found[i].DueAt = found[i].DueAt.Add(h.moves)
	}
	h.samples, h.sampled = h.samples+1, h.sampled+len(found)
	return found, nil
}
