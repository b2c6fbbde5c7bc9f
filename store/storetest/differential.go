package storetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Differential makes a number of sequences of random operations on a store and on a reference. It compares every result
// and, after every few operations and at the end, all documents of both. Two handles of the store take turns. NewStore
// is as for [Run]; newReference makes an empty reference.
//
// Tokens, the order of occurrences that are due at the same time, and the due times of occurrences that a claim has put
// back for a pause are not compared: the contract leaves them open.
//
// Each run makes the same operations. CARILLON_TEST_LONG=1 makes twenty times as many, different in each run. A failure
// prints its seed; -rapid.seed=N repeats its operations, and -rapid.checks=N sets the number of sequences.
func Differential(t *testing.T, checks int, newReference func() store.Store, newStore func(t *testing.T) Opener) {
	t.Helper()
	configureRapid(checks)
	var handles [2]store.Store
	clean := false // the store is empty
	rapid.Check(t, func(r *rapid.T) {
		if !clean {
			open := newStore(t)
			for i := range handles {
				s, err := open()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				handles[i] = s
			}
		}
		clean = false
		d := &differential{
			T: r, ctx: t.Context(), reference: newReference(), handles: handles, now: epoch,
			tokens: map[claimToken]string{}, known: map[job.ID]knownOccurrence{},
			vagueDue: map[job.ID]bool{}, vagueExpansion: map[job.Name]bool{}, vagueExpiry: map[job.Name]bool{},
		}
		r.Repeat(d.actions())
		d.compareContents()
		d.empty()
		clean = true
	})
}

// actions returns all operations, some of them more often than others, and the comparison after each.
func (d *differential) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){}
	for _, a := range []struct {
		name  string
		times int
		do    func()
	}{
		{"put", 3, d.put}, {"edit", 3, d.edit}, {"cancel", 1, d.cancel}, {"amend", 1, d.amend},
		{"pause", 1, d.pause}, {"resume", 2, d.resume}, {"trigger", 1, d.trigger}, {"list", 1, d.list},
		{"claim", 5, d.claim}, {"settle", 4, d.settle}, {"settle dead", 2, d.settleDead},
		{"claim jobs", 4, d.claimJobs}, {"advance", 3, d.advance}, {"sweep", 1, d.sweep}, {"look", 1, d.look},
		{"records", 1, d.writeRecords}, {"move", 1, d.move}, {"wait", 4, d.wait},
	} {
		for i := range a.times {
			actions[a.name+" "[:min(i, 1)]+strings.Repeat("+", i)] = d.do(a.do)
		}
	}
	actions[""] = d.do(d.afterEach)
	return actions
}

// configureRapid sets the number of checks and their seed, unless the command line does. No check may be under way.
func configureRapid(checks int) {
	settings := map[string]string{"rapid.steps": "60", "rapid.seed": "1", "rapid.nofailfile": "true"}
	if Long() {
		checks, settings["rapid.seed"] = 20*checks, "0"
	}
	settings["rapid.checks"] = strconv.Itoa(checks)
	for name, value := range settings {
		if commandLine()[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
}

// Long reports whether this is a long test, which leaves nothing out: CARILLON_TEST_LONG=1.
func Long() bool { return os.Getenv("CARILLON_TEST_LONG") == "1" }

// commandLine has the flags of the command line.
var commandLine = sync.OnceValue(func() map[string]bool {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return given
})

// differential is one sequence of operations on a reference and on a store.
type differential struct {
	*rapid.T
	ctx       context.Context
	reference store.Store
	handles   [2]store.Store
	now       time.Time
	serial    uint64
	// operations is the number of operations made.
	operations int

	claims     []claimed
	expansions []expanding
	// tokens has the reference's token for each of the store's.
	tokens map[claimToken]string
	known  map[job.ID]knownOccurrence // by delivery id
	// vagueDue has the occurrences whose due times may differ, since a claim has put them back while their job was
	// paused.
	vagueDue map[job.ID]bool
	// vagueExpansion has the jobs that may become due for expansion at different times, since a pause has interrupted
	// an expansion.
	vagueExpansion map[job.Name]bool
	// vagueExpiry has the jobs that may be kept longer, because of a settlement that changed nothing.
	vagueExpiry map[job.Name]bool
}

// claimed is one occurrence as claimed from both stores.
type claimed struct{ reference, store store.Claimed }

// claimToken identifies a claim of an occurrence by the store's token.
type claimToken struct {
	id    job.ID
	token string
}

// expanding is one job as claimed from both stores.
type expanding struct {
	job              job.Job
	reference, store string         // tokens
	advance          *store.Advance // made earlier
}

// knownOccurrence is an occurrence that was put or inserted by an advance.
type knownOccurrence struct {
	id       job.ID
	revision job.Revision
}

// do makes a rapid action of a method.
func (d *differential) do(f func()) func(*rapid.T) {
	return func(r *rapid.T) {
		d.T = r
		f()
	}
}

// store returns one of the handles.
func (d *differential) store() store.Store { return d.handles[draw(d, "handle", rapid.IntRange(0, 1))] }

// both makes the same call on both stores, and compares the results.
func both[V any](d *differential, what string, f func(s store.Store) (V, error)) (reference, other V) {
	d.Helper()
	reference, err := f(d.reference)
	other, otherErr := f(d.store())
	same(d, "the error of "+what, answer(otherErr), answer(err))
	return reference, other
}

// bothDo is like both, for calls that return only an error.
func bothDo(d *differential, what string, f func(s store.Store) error) {
	d.Helper()
	err := f(d.reference)
	same(d, "the error of "+what, answer(f(d.store())), answer(err))
}

// answer returns the name of the contract's error.
func answer(err error) string {
	for _, known := range []error{
		store.ErrNotFound, store.ErrPrecondition, store.ErrSuperseded, store.ErrConflict, store.ErrTooLarge,
		store.ErrUnavailable,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fmt.Sprint(err)
}

// same compares the store's result with the reference's.
func same(d *differential, what string, got, want any) {
	d.Helper()
	if !reflect.DeepEqual(got, want) {
		d.Fatalf("%s differs:\nthe store has     %+v\nthe reference has %+v", what, got, want)
	}
}

// draw draws a value from a generator.
func draw[V any](d *differential, what string, g *rapid.Generator[V]) V { return g.Draw(d.T, what) }

// oneOf draws one of some values.
func oneOf[V any](d *differential, what string, values ...V) V {
	return draw(d, what, rapid.SampledFrom(values))
}

// someOf draws at least one value and at most a number of values, distinct and in any order.
func someOf[V any](d *differential, what string, most int, values []V) []V {
	if len(values) == 0 {
		return nil
	}
	index := rapid.IntRange(0, len(values)-1)
	indexes := draw(d, what, rapid.SliceOfNDistinct(index, 1, min(most, len(values)), rapid.ID[int]))
	some := make([]V, len(indexes))
	for i, at := range indexes {
		some[i] = values[at]
	}
	return some
}

// everyName has all names of jobs, of two tenants.
var everyName = []job.Name{name("a"), name("a/ü 🔔"), name("b"), {Tenant: "acme", Key: "a"}}

var everyPriority = []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityLow}

// everyLane has the lanes of these tenants.
var everyLane = func() (lanes []job.Lane) {
	for _, tenant := range []string{job.DefaultTenant, "acme"} {
		for _, p := range everyPriority {
			lanes = append(lanes, job.Lane{Tenant: tenant, Priority: p})
		}
	}
	return lanes
}()

func (d *differential) name() job.Name { return oneOf(d, "name", everyName...) }

// revision returns a fresh revision, which is the same when the operations are repeated.
func (d *differential) revision() job.Revision {
	d.serial++
	id := ulid.ULID{}
	_ = id.SetTime(ulid.Timestamp(d.now))
	for i := range 8 {
		id[15-i] = byte(d.serial >> (8 * i))
	}
	return job.Revision(id.String())
}

// present returns a job of the reference store.
func (d *differential) present(n job.Name) (status store.JobStatus, there bool) {
	d.Helper()
	status, err := store.ReadJob(d.ctx, d.reference, n)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		d.Fatal(err)
	}
	return status, err == nil
}

// contents returns all documents of a store, by their names and ids.
func (d *differential) contents(s store.Store, limit int) (documents []store.Document) {
	d.Helper()
	for after := store.Place(""); ; {
		page, next, err := s.Export(d.ctx, after, limit)
		if err != nil {
			d.Fatal(err)
		}
		if len(page) == 0 {
			return documents
		}
		documents, after = append(documents, page...), next
	}
}

// afterEach compares the documents after each operation of a long test, otherwise after every tenth, since the
// comparison takes longer than an operation.
func (d *differential) afterEach() {
	d.Helper()
	if d.operations++; Long() || d.operations%10 == 0 {
		d.compareContents()
	}
}

// compareContents compares all documents of both.
func (d *differential) compareContents() {
	d.Helper()
	want, got := d.documents(d.reference), d.documents(d.handles[0])
	for key, ours := range want {
		theirs, there := got[key]
		if !there {
			d.Fatalf("the store lacks %s %s", key, d.show(ours))
		}
		d.settleVague(ours, theirs)
		same(d, key, d.show(theirs), d.show(ours))
	}
	for key, theirs := range got {
		if _, there := want[key]; !there {
			d.Fatalf("only the store has %s %s", key, d.show(theirs))
		}
	}
}

// settleVague updates the set of documents whose fields may differ. A field that is equal again may differ no more, and
// an occurrence that no pause holds back is due in both stores.
func (d *differential) settleVague(ours, theirs store.Document) {
	d.Helper()
	if j := ours.Job; j != nil {
		if d.vagueExpansion[j.Name] && j.ExpandAt.Equal(theirs.Job.ExpandAt) {
			delete(d.vagueExpansion, j.Name)
		}
		if !theirs.Job.ExpiresAt.After(j.ExpiresAt) {
			delete(d.vagueExpiry, j.Name)
		}
		return
	}
	o := ours.Occurrence
	if !d.vagueDue[o.ID] {
		return
	}
	if o.DueAt.Equal(theirs.Occurrence.DueAt) {
		delete(d.vagueDue, o.ID)
		return
	}
	status, there := d.present(o.Name)
	paused := there && !status.PausedAt.IsZero()
	if !paused && (o.DueAt.After(d.now) || theirs.Occurrence.DueAt.After(d.now)) {
		d.Fatalf("%s is due at %s in the store, and at %s in the reference", o.ID, theirs.Occurrence.DueAt, o.DueAt)
	}
}

// documents returns a store's documents by their names and ids.
func (d *differential) documents(s store.Store) map[string]store.Document {
	d.Helper()
	all := map[string]store.Document{}
	for _, r := range d.contents(s, 1000) {
		if r.Job != nil {
			all["job "+r.Job.String()] = r
		} else {
			all["occurrence "+r.Occurrence.ID.String()] = r
		}
	}
	return all
}

// show returns the text of a document without the fields that may differ.
func (d *differential) show(r store.Document) string {
	if r.Job != nil {
		return d.showJob(*r.Job)
	}
	return d.showOccurrence(*r.Occurrence)
}

func (d *differential) showJob(j job.Job) string {
	if d.vagueExpansion[j.Name] {
		j.ExpandAt = time.Time{}
	}
	if d.vagueExpiry[j.Name] {
		j.ExpiresAt = time.Time{}
	}
	target, schedule := showTarget(j.Target()), j.Schedule.Encode()
	j.Callback, j.Options, j.Schedule = job.Callback{}, job.Options{}, job.Schedule{}
	return fmt.Sprintf("%s %s schedule=%s", showFields(j), target, schedule)
}

func (d *differential) showOccurrence(o job.Occurrence) string {
	if d.vagueDue[o.ID] {
		o.DueAt = time.Time{}
	}
	if token, theirs := d.tokens[claimToken{o.ID, o.Token}]; theirs {
		o.Token = token
	}
	own, part := "", ""
	if o.Own != nil {
		own = " own " + showTarget(*o.Own)
	}
	if o.Part != nil {
		part = fmt.Sprintf(" part=%+v", *o.Part)
	}
	o.Own, o.Part = nil, nil
	return showFields(o) + own + part
}

// showFields returns the text of those fields of a struct that are set.
func showFields(v any) string {
	var fields []string
	for field, value := range reflect.ValueOf(v).Fields() {
		if !value.IsZero() {
			fields = append(fields, fmt.Sprintf("%s=%v", field.Name, value))
		}
	}
	return strings.Join(fields, " ")
}

func showTarget(t job.Target) string {
	return fmt.Sprintf("callback=%s %s options=%s", t.Callback.Type, t.Callback.Data, t.Options.Encode())
}

func (d *differential) showOccurrences(all []job.Occurrence) []string {
	shown := make([]string, len(all))
	for i, o := range all {
		shown[i] = d.showOccurrence(o)
	}
	return shown
}

// pendingOf returns the reference's pending occurrences of a job.
func (d *differential) pendingOf(status store.JobStatus) []job.Occurrence {
	d.Helper()
	filter := store.OccurrenceFilter{Name: status.Name, Revision: status.Revision, Limit: 1000}
	page, _, err := d.reference.Occurrences(d.ctx, filter)
	if err != nil {
		d.Fatal(err)
	}
	return slices.DeleteFunc(page, func(o job.Occurrence) bool { return o.Revision == "" })
}

// wait lets time pass: longer than a retry, than a lease, or than any delay.
func (d *differential) wait() {
	d.now = d.now.Add(oneOf(d, "for",
		time.Millisecond, time.Second, 7*time.Second, lease-time.Second, lease, time.Hour, 49*time.Hour))
}
