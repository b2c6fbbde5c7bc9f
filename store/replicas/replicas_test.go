package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestCount(t *testing.T) {
	s := open(t)
	expect := func(what string, now time.Time, want int) {
		t.Helper()
		if n, err := replicas.Count(t.Context(), s, now); err != nil || n != want {
			t.Errorf("%s: %d replicas, %v; want %d", what, n, err, want)
		}
	}
	beat := func(replica string, until time.Time) {
		t.Helper()
		if err := replicas.Beat(t.Context(), s, replica, nil, epoch, until); err != nil {
			t.Error(err)
		}
	}
	stop := func(replica string) {
		t.Helper()
		if err := replicas.Stop(t.Context(), s, replica, epoch); err != nil {
			t.Error(err)
		}
	}
	expect("a fresh store", epoch, 0)
	until := epoch.Add(30 * time.Second)
	beat("a", until)
	beat("b", until)
	beat("b", until.Add(10*time.Second))
	expect("both", epoch, 2)
	expect("just before one's time is over", until.Add(-time.Millisecond), 2)
	expect("when it is", until, 1)
	expect("when both are", until.Add(10*time.Second), 0)

	stop("b")
	stop("b")
	stop("none")
	expect("when one has stopped", epoch, 1)
	beat("b", until)
	expect("when it has started again", epoch, 2)

	swept, err := s.Sweep(t.Context(), store.SweepParams{Now: until, Again: time.Hour, Limit: 10})
	if err != nil || swept.Records != 2 {
		t.Errorf("swept %+v, %v", swept, err)
	}
	expect("when they are forgotten", epoch, 0)
	documents, _, err := s.Export(t.Context(), "", 10)
	if err != nil || len(documents) != 0 {
		t.Errorf("%d documents of replicas are exported, %v", len(documents), err)
	}
}

// Count counts all replicas, however many there are.
func TestCountMany(t *testing.T) {
	s := open(t)
	const n = 2001
	var changes []store.RecordChange
	recorded := &recorder{Store: s, changes: &changes}
	for i := range n {
		if err := replicas.Beat(t.Context(), recorded, fmt.Sprint("replica ", i), nil, epoch, epoch.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.WriteRecords(t.Context(), changes) { // in one call, which is faster
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := replicas.Count(t.Context(), s, epoch); err != nil || got != n {
		t.Errorf("%d replicas, %v; want %d", got, err, n)
	}
}

// recorder records changes and does not write them.
type recorder struct {
	store.Store
	changes *[]store.RecordChange
}

func (r *recorder) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	*r.changes = append(*r.changes, changes...)
	return make([]error, len(changes))
}

// Reports on hours stay for a day, also when their replicas have stopped.
func TestHours(t *testing.T) {
	s := open(t)
	hour := func(ago int, tells string) replicas.Hour {
		return replicas.Hour{From: epoch.Add(-time.Duration(ago) * time.Hour), Tells: []byte(tells)}
	}
	beat := func(replica string, hours ...replicas.Hour) {
		t.Helper()
		if err := replicas.Beat(t.Context(), s, replica, nil, epoch, epoch.Add(time.Minute), hours...); err != nil {
			t.Error(err)
		}
	}
	expect := func(since, now time.Time, want string) {
		t.Helper()
		all, err := replicas.Hours(t.Context(), s, since, now)
		got := ""
		for _, h := range all {
			got += fmt.Sprintf("%s %s %s, ", h.Replica, h.From.Sub(epoch), h.Tells)
		}
		if got != want || err != nil {
			t.Errorf("since %s at %s: %q, %v; want %q", since, now, got, err, want)
		}
	}
	beat("a-1", hour(2, "x"), hour(1, "y"))
	beat("b", hour(1, "z"))
	beat("a-1", hour(1, "yy"))
	if err := replicas.Stop(t.Context(), s, "b", epoch, hour(0, "last")); err != nil {
		t.Error(err)
	}
	expect(epoch.Add(-2*time.Hour), epoch, "a-1 -2h0m0s x, a-1 -1h0m0s yy, b -1h0m0s z, b 0s last, ")
	expect(epoch.Add(-time.Hour), epoch, "a-1 -1h0m0s yy, b -1h0m0s z, b 0s last, ")
	expect(epoch.Add(-2*time.Hour), epoch.Add(24*time.Hour), "b 0s last, ")
}

func TestUnavailable(t *testing.T) {
	s := open(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, countErr := replicas.Count(ended, s, epoch)
	for what, err := range map[string]error{
		"beat": replicas.Beat(ended, s, "a", nil, epoch, epoch.Add(time.Minute)), "stop": replicas.Stop(ended, s, "a", epoch), "count": countErr,
	} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s answers %v", what, err)
		}
	}
	if n, err := replicas.Count(t.Context(), s, epoch); n != 0 || err != nil {
		t.Errorf("%d replicas, %v", n, err)
	}
}
