//go:build services

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// simple is the kind of the message that commits a change and checks its deadline.
const simple = 'Q'

// TestLate: a change that is delayed, completely or from its COMMIT on, changes nothing when it arrives after its
// deadline, after its client has gone.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, from := range []struct {
		name string
		hold func(n int, kind byte) bool
	}{
		{"whole", func(int, byte) bool { return true }},
		{"from the commit on", func(_ int, kind byte) bool { return kind == simple }},
	} {
		t.Run(from.name, func(t *testing.T) {
			t.Parallel()
			// The large ones have a schema of their own, since the contents are compared after each.
			for _, mutations := range []func(*testing.T, store.Store, string) []storetest.Mutation{storetest.Mutations, storetest.LargeMutations} {
				sc := newSchema(t, serverURL)
				beside := sc.open()
				before := mutations(t, beside, "before ")
				for i, m := range mutations(t, beside, "") {
					sc.late(before[i], m, beside, from.hold)
				}
			}
		})
	}
}

// TestAnswerCut: if the server's answer to a change breaks off anywhere, a change that was made is not told to have
// changed nothing.
func TestAnswerCut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"put", "replace and carry over"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := newSchema(t, serverURL)
			beside := sc.open()
			r := newRelay(t, sc.url)
			through, err := postgres.Open(t.Context(), with(t, r.url, "pool_max_conns", "1"))
			if err != nil {
				t.Fatal(err)
			}
			defer through.Close()
			for place, cut := 0, true; cut; place += 11 {
				sc.empty() // all contents are compared
				mutation := func(prefix string) storetest.Mutation {
					mutations := storetest.Mutations(t, beside, fmt.Sprintf("%s %d ", prefix, place))
					return mutations[slices.IndexFunc(mutations, func(m storetest.Mutation) bool { return m.Name == name })]
				}
				// A similar change is made before, on the connection that is then there, so that the statements are prepared.
				before, m := mutation("before"), mutation("then")
				if err := before.Do(t.Context(), through); err != nil {
					t.Fatal(err)
				}
				then, end := storetest.Contents(t, beside), r.cutAfter(place)
				err := m.Do(t.Context(), through)
				if cut = end(); errors.Is(err, store.ErrNotDone) {
					storetest.Unchanged(t, fmt.Sprintf("%s, cut after %d bytes", name, place), then, storetest.Contents(t, beside))
				}
			}
		})
	}
}

// TestLateAnywhere: if the messages of a change are delayed from any one on, the rest changes nothing when it arrives.
func TestLateAnywhere(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"put", "replace and carry over"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			sc := newSchema(t, serverURL)
			beside := sc.open()
			for place, held := 0, true; held; place++ {
				sc.empty() // all contents are compared
				before := storetest.Mutations(t, beside, fmt.Sprintf("before %d ", place))
				mutations := storetest.Mutations(t, beside, fmt.Sprintf("%d ", place))
				i := slices.IndexFunc(mutations, func(m storetest.Mutation) bool { return m.Name == what })
				held = sc.late(before[i], mutations[i], beside, func(n int, _ byte) bool { return n >= place })
			}
		})
	}
}

// late makes a change that is delayed from a message on, if there is such a message, until its deadline has passed. The
// change has no effect when the rest arrives. A similar change is made before, so that the statements are prepared and
// all messages are sent at once.
func (s schema) late(before, m storetest.Mutation, beside store.Store, hold func(n int, kind byte) bool) (held bool) {
	s.Helper()
	t := s.TB.(*testing.T)
	r := newRelay(t, s.url)
	through, err := postgres.Open(t.Context(), with(t, with(t, r.url, "application_name", s.name), "pool_max_conns", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Do(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	deliver := r.holdFrom(hold)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err = m.Do(ctx, through)
	if err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%s answers %v", m.Name, err)
	}
	<-ctx.Done()
	then := storetest.Contents(t, beside)
	held = deliver()
	if err := through.Close(); err != nil {
		t.Error(err)
	}
	s.awaitGone("application_name", s.name)
	storetest.Unchanged(t, m.Name+", of which a part came late", then, storetest.Contents(t, beside))
	if held && err == nil {
		t.Errorf("%s is answered, though it was held up", m.Name)
	}
	return held
}
