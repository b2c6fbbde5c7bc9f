package storetest

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var lateTests = []namedTest{
	{"a mutation whose time is over changes nothing", testOverdue},
}

// Mutation is a call that changes the content of a store, if it is made in time.
type Mutation struct {
	Name string
	Do   func(ctx context.Context, s store.Store) error
}

// Mutations fills a store, and returns one call of each kind for it. Each call concerns its own job, whose key begins
// with a prefix, and may be made once.
func Mutations(t *testing.T, s store.Store, prefix string) []Mutation {
	t.Helper()
	f := &fixture{T: t, main: s, two: s}
	name := func(key string) job.Name { return name(prefix + key) }
	buried, deleted := f.bury(name("redriven"), epoch), f.bury(name("deleted"), epoch)
	for _, key := range []string{"replaced", "cancelled", "amended", "paused", "resumed", "triggered"} {
		f.put(newPut(name(key), epoch, time.Hour, 2*time.Hour))
	}
	f.pause(name("resumed"), epoch)
	carried := newPut(name("carried"), epoch, time.Hour, 2*time.Hour)
	f.put(carried)
	amended := f.job(name("amended"))
	advance, _ := f.claimedAdvance(name("advanced"))
	there, deletedRecord := write(prefix+"there", "1"), write(prefix+"deleted", "1")
	f.writeRecords(there, deletedRecord)
	return []Mutation{
		{"put", putting(newPut(name("new"), epoch, time.Hour))},
		{"put on a condition", putting(on(newPut(name("new, if none"), epoch, time.Hour), store.Condition{Absent: true}))},
		{"put several", func(ctx context.Context, s store.Store) error {
			results := s.Put(ctx, []store.Put{newPut(name("new 1"), epoch, time.Hour), newPut(name("new 2"), epoch, time.Hour)})
			return errors.Join(results[0].Err, results[1].Err)
		}},
		{"replace", putting(newPut(name("replaced"), epoch, 3*time.Hour))},
		{"replace and carry over", putting(replacing(carried, edited(name("carried"), epoch, time.Hour, 3*time.Hour)))},
		{"cancel", func(ctx context.Context, s store.Store) error {
			_, err := s.Cancel(ctx, []job.Name{name("cancelled")}, store.Asked{Now: epoch})
			return err
		}},
		{"amend", func(ctx context.Context, s store.Store) error {
			return s.Amend(ctx, amendment(amended.Job, amended.Version, epoch))
		}},
		{"pause", func(ctx context.Context, s store.Store) error {
			return s.Pause(ctx, name("paused"), job.NewRevision(epoch), epoch)
		}},
		{"resume", func(ctx context.Context, s store.Store) error {
			return s.Resume(ctx, name("resumed"), job.NewRevision(epoch), epoch)
		}},
		{"trigger", func(ctx context.Context, s store.Store) error {
			return s.Trigger(ctx, trigger(name("triggered"), epoch, 1))
		}},
		{"redrive", func(ctx context.Context, s store.Store) error {
			_, err := s.SettleDead(ctx, redrive(job.DefaultTenant, epoch, buried.ID))
			return err
		}},
		{"delete a dead letter", func(ctx context.Context, s store.Store) error {
			_, err := s.SettleDead(ctx, discard(job.DefaultTenant, deleted.ID))
			return err
		}},
		{"advance", func(ctx context.Context, s store.Store) error { return s.Advance(ctx, []store.Advance{advance}) }},
		{"create a record", record(ifAbsent(write(prefix+"created", "1")))},
		{"write a record", record(write(prefix+"written", "1"))},
		{"replace a record", record(ifVersion(write(prefix+"there", "2"), there.Version))},
		{"delete a record", record(remove(prefix + "deleted"))},
		{"write several records", record(write(prefix+"written 1", "1"), ifAbsent(write(prefix+"written 2", "1")))},
	}
}

// record returns a call that makes changes of records.
func record(changes ...store.RecordChange) func(ctx context.Context, s store.Store) error {
	return func(ctx context.Context, s store.Store) error { return errors.Join(s.WriteRecords(ctx, changes)...) }
}

// LargeMutations are like [Mutations], but with more occurrences than some stores change at once.
func LargeMutations(t *testing.T, s store.Store, prefix string) []Mutation {
	t.Helper()
	f := &fixture{T: t, main: s, two: s}
	after := make([]time.Duration, 1200)
	for i := range after {
		after[i] = time.Hour + time.Duration(i)*time.Millisecond
	}
	fresh, carried := name(prefix+"new, many"), name(prefix+"carried, many")
	there := newPut(carried, epoch, after...)
	f.put(there)
	return []Mutation{
		{"put many instants", putting(newPut(fresh, epoch, after...))},
		{"replace and carry many over", putting(replacing(there, edited(carried, epoch, after[1:]...)))},
	}
}

func putting(p store.Put) func(ctx context.Context, s store.Store) error {
	return func(ctx context.Context, s store.Store) error { return s.Put(ctx, []store.Put{p})[0].Err }
}

// on returns a put with a condition.
func on(p store.Put, c store.Condition) store.Put {
	p.If = c
	return p
}

// Contents returns all jobs and occurrences of a store, by their names and ids, without occurrences that never fire,
// and the records of the collection that [Mutations] changes.
func Contents(t *testing.T, s store.Store) map[string]any {
	t.Helper()
	all := map[string]any{}
	f := &fixture{T: t, main: s, two: s}
	for _, r := range f.records(store.RecordFilter{}) {
		all["record "+r.Key] = r
	}
	for _, r := range f.export(1000) {
		if r.Job != nil {
			all["job "+r.Job.String()] = r
		} else {
			all["occurrence "+r.Occurrence.ID.String()+" of "+r.Occurrence.Name.String()] = r
		}
	}
	return all
}

// changes returns the differences between a store's contents at two times.
func changes(before, after map[string]any) (all []string) {
	for what, r := range before {
		if now, there := after[what]; !there {
			all = append(all, what+" is gone")
		} else if !reflect.DeepEqual(now, r) {
			all = append(all, what+" is changed")
		}
	}
	for what := range after {
		if _, there := before[what]; !there {
			all = append(all, what+" is new")
		}
	}
	slices.Sort(all)
	return all
}

// Unchanged fails the test if a store's contents have changed.
func Unchanged(t *testing.T, what string, before, after map[string]any) {
	t.Helper()
	if all := changes(before, after); len(all) > 0 {
		t.Errorf("%s: %d changes: %s", what, len(all), strings.Join(all[:min(len(all), 5)], ", "))
	}
}

// overdue is a context whose deadline has passed, but whose timer has not fired yet, as in a process that continues
// after a stop.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

func testOverdue(f *fixture) {
	for _, prepare := range []func(t *testing.T, s store.Store, prefix string) []Mutation{Mutations, LargeMutations} {
		s := f.another().store()
		mutations := prepare(f.T, s, "")
		before := Contents(f.T, s)
		for _, m := range mutations {
			err := m.Do(overdue{f.Context()}, s)
			expect(f, m.Name+" is unavailable", errors.Is(err, store.ErrUnavailable), true)
		}
		// Each mutation concerns other jobs than the rest, so none undoes another's effect.
		Unchanged(f.T, "all mutations after their time", before, Contents(f.T, s))
		for _, m := range mutations { // in time, it would have changed something
			f.must(m.Do(f.Context(), s))
			after := Contents(f.T, s)
			if len(changes(before, after)) == 0 {
				f.Errorf("%s changes nothing in time either", m.Name)
			}
			before = after
		}
	}
}
