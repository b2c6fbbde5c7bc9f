package main

import (
	"context"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestObserver(t *testing.T) {
	w := &work{count: 4, payload: 200, start: time.Now().Add(-time.Minute).Truncate(time.Second), every: 40 * time.Second}
	o := newObserver(w)
	if n := len(w.data(3)); n != 200 {
		t.Errorf("a payload has %d bytes, not 200", n)
	}
	// The instants are a minute ago, 20 s ago, in 20 s and in a minute.
	for _, i := range []int{0, 2, 3, 2} {
		o.handle(w.data(i))
	}
	o.handle([]byte(`{"n": 3, "text": "as PostgreSQL writes it"}`))
	o.handle([]byte(`{"n":4}`)) // not a job of the work
	o.handle([]byte(`?`))
	deviations, lost, doubled := o.seen()
	if lost != 1 || doubled != 2 || len(deviations) != 3 {
		t.Fatalf("%d deviations, %d lost, %d doubled; want 3, 1 and 2", len(deviations), lost, doubled)
	}
	slices.Sort(deviations)
	for i, seconds := range []int64{-60, -20, 60} {
		// The call came within some seconds of these, and no earlier.
		if least := seconds * 1e6; deviations[i] < least || deviations[i] > least+15e6 {
			t.Errorf("a deviation is %d µs, where it should be %d s or somewhat more", deviations[i], seconds)
		}
	}
}

func TestReportsOfRoundsAreJoined(t *testing.T) {
	var whole Report
	for i, values := range [][2]float64{{3, 30}, {1, 10}, {2, 50}} {
		r := Report{Mode: "drain", Subject: "s", Seconds: 1.5}
		r.add("a", "1/s", values[0])
		r.add("b", "ms", values[1])
		if i == 0 {
			whole = r
		} else if err := whole.join(r); err != nil {
			t.Fatal(err)
		}
	}
	a, b := whole.Figures[0], whole.Figures[1]
	if a.Median != 2 || b.Median != 30 || !slices.Equal(a.Rounds, []float64{3, 1, 2}) || whole.Seconds != 4.5 {
		t.Errorf("joined: %+v", whole)
	}
	other := Report{}
	other.add("a", "1/s", 1)
	if err := whole.join(other); err == nil {
		t.Error("a round without one of the figures is joined")
	}
	other.add("c", "ms", 1)
	if err := whole.join(other); err == nil {
		t.Error("a round with another figure is joined")
	}
}

// slow is a peer that completes one job each second from its start.
type slow struct {
	peer
	started time.Time
}

func (*slow) insert(context.Context, *work) error { return nil }

func (s *slow) start(context.Context, func([]byte)) error {
	s.started = time.Now()
	return nil
}

func (s *slow) settled(context.Context) (int, error) {
	return int(time.Since(s.started) / time.Second), nil
}

func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit time.Duration
		notes int
	}{
		{"in time", time.Minute, 0},
		{"cut off", 10 * time.Second, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := comparison{options: options{count: 30, limit: c.limit}, out: io.Discard}
				var r Report
				start := time.Now()
				if err := o.drain(t.Context(), &slow{}, &r); err != nil {
					t.Fatal(err)
				}
				if rate := r.Figures[0].Median; rate < 0.99 || rate > 1 {
					t.Errorf("the rate is %v/s, not 1/s", rate)
				}
				if took := time.Since(start); took > min(c.limit, 30*time.Second)+time.Second {
					t.Errorf("it took %s", took)
				}
				if len(r.Notes) != c.notes {
					t.Errorf("notes: %q", r.Notes)
				}
			})
		})
	}
}

func TestNoProgressIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := comparison{out: io.Discard}
		p := &slow{started: time.Now().Add(time.Hour)} // so the number of completed jobs is negative
		if _, err := o.await(t.Context(), p, 1, time.Time{}); err == nil {
			t.Error("it does not end")
		}
	})
}
