package instrumented_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/instrumented"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

const (
	durations = "carillon_store_duration_seconds"
	failures  = "carillon_store_errors_total"
)

// A measured store behaves as before.
func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Opener {
		s := memory.New()
		return func() (store.Store, error) { return instrumented.New(s, prometheus.NewRegistry()), nil }
	})
}

// broken is a store whose calls all return an error, and whose Warnings returns a text.
type broken struct {
	store.Store
	err error
}

func (b broken) Put(_ context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	results[len(puts)-1].Err = b.err
	return results
}

func (b broken) Jobs(context.Context, store.JobFilter) ([]store.JobStatus, error) { return nil, b.err }

func (b broken) Settle(context.Context, []store.Settlement) error { return b.err }

func (broken) Warnings(context.Context) []string { return []string{"it is broken"} }

// A store has few methods, so that it is little work to write one. Rare operations are typed code over store.Records.
func TestAStoreHasFewMethods(t *testing.T) {
	if n := reflect.TypeFor[store.Store]().NumMethod(); n > 24 {
		t.Errorf("a store has %d methods, want at most 24", n)
	}
}

// Every method of a store is measured under its own name.
func TestEveryMethodIsMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	inner, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	s := instrumented.New(inner, registry)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // so that the calls have no effect
	kind := reflect.TypeFor[store.Store]()
	var want []string
	for i := range kind.NumMethod() {
		name := kind.Method(i).Name
		if name == "Close" {
			continue
		}
		op := strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
		want = append(want, op)
		before := counts(t, registry)
		method := reflect.ValueOf(s).MethodByName(name)
		args := []reflect.Value{reflect.ValueOf(ended)}
		for k := 1; k < method.Type().NumIn(); k++ {
			args = append(args, reflect.Zero(method.Type().In(k)))
		}
		method.Call(args)
		for label, n := range counts(t, registry) {
			if expected := before[label] + map[bool]uint64{true: 1}[label == op]; n != expected {
				t.Errorf("after a call of %s, %d calls of %s are counted, want %d", name, n, label, expected)
			}
		}
	}
	var got []string
	for op := range counts(t, registry) {
		got = append(got, op)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("measured are\n%q\nthe methods are\n%q", got, want)
	}
	if n, err := testutil.GatherAndCount(registry, failures); err != nil || n != len(want) {
		t.Errorf("%d counters of errors are shown from the start, want %d, %v", n, len(want), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Now(t.Context()); err == nil {
		t.Error("closing it did not close the inner store")
	}
}

// counts returns the number of counted calls by operation.
func counts(t *testing.T, registry *prometheus.Registry) map[string]uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint64{}
	for _, family := range families {
		if family.GetName() != durations {
			continue
		}
		for _, m := range family.GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
		}
	}
	return all
}

// Faults are counted; a store's regular results are not.
func TestErrors(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer stop()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want int
	}{
		"none":                     {t.Context(), nil, 0},
		"unavailable":              {t.Context(), fmt.Errorf("%w: gone", store.ErrUnavailable), 1},
		"damaged":                  {t.Context(), errors.New("can't be read"), 1},
		"not found":                {t.Context(), store.ErrNotFound, 0},
		"precondition":             {t.Context(), fmt.Errorf("no: %w", store.ErrPrecondition), 0},
		"superseded":               {t.Context(), fmt.Errorf("no: %w", store.ErrSuperseded), 0},
		"conflict":                 {t.Context(), store.ErrConflict, 0},
		"the client has hung up":   {ended, fmt.Errorf("%w: %w", store.ErrUnavailable, context.Canceled), 0},
		"the store took too long":  {late, fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded), 1},
		"not found after too long": {late, store.ErrNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			s := instrumented.New(broken{err: c.err}, registry)
			if r := s.Put(c.ctx, make([]store.Put, 2)); len(r) != 2 || !errors.Is(r[1].Err, c.err) {
				t.Errorf("put answers %v", r)
			}
			if _, err := s.Jobs(c.ctx, store.JobFilter{}); !errors.Is(err, c.err) {
				t.Errorf("jobs answers %v", err)
			}
			if err := s.Settle(c.ctx, nil); !errors.Is(err, c.err) {
				t.Errorf("settle answers %v", err)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				if family.GetName() != failures {
					continue
				}
				for _, m := range family.GetMetric() {
					want := 0
					if op := m.GetLabel()[0].GetValue(); op == "put" || op == "jobs" || op == "settle" {
						want = c.want
					}
					if got := int(m.GetCounter().GetValue()); got != want {
						t.Errorf("%d errors of %s, want %d", got, m.GetLabel()[0].GetValue(), want)
					}
				}
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	warnings := func(inner store.Store) []string {
		w, ok := instrumented.New(inner, prometheus.NewRegistry()).(store.Warner)
		if !ok {
			t.Fatal("it passes no warnings on")
		}
		return w.Warnings(t.Context())
	}
	if got := warnings(broken{}); !slices.Equal(got, []string{"it is broken"}) {
		t.Errorf("it warns of %q", got)
	}
	if got := warnings(struct{ store.Store }{}); got != nil {
		t.Errorf("it warns of %q for a store that can't warn", got)
	}
}
