package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Break is a fault of the network between a handle and its server.
type Break int

// The faults, at the n-th write of a mutation.
const (
	// CutBefore loses the write and all later messages.
	CutBefore Break = iota
	// CutAfter lets the write take effect. Its answer and all later messages are lost.
	CutAfter
	// Gap is a CutAfter that ends by itself after the store has given up the write, but before it gives up the mutation.
	Gap
	// Hold keeps the write until the network is mended, and lets later messages pass.
	Hold
	// Full lets the write take effect and loses its answer. All later writes are refused: the server's disk is full.
	Full
)

func (b Break) String() string {
	return [...]string{"cut before", "cut after", "gap after", "held at", "full after"}[b]
}

// Network is the network between a handle and its server.
type Network interface {
	// Break causes a fault at the n-th write that the handle sends from now on; the first is 1.
	Break(what Break, n int)
	// Meet calls do just before the n-th command that the handle sends from now on, of any kind; the first is 1. Unless
	// last is set, it also calls do before each later command.
	Meet(n int, last bool, do func())
	// Lag delays answers about the server's time.
	Lag(by time.Duration)
	// Mend ends all faults; held writes arrive. It returns the number of writes since Break, or of commands since Meet.
	Mend() int
}

// Interrupted tests that each mutation keeps the contract of [store.Store] if the network fails at any of its writes.
// It takes effect completely or not at all, and never after its time; its answer is true; in the end each job fires
// according to its old definition or its new one. Interrupted also tests that each instant fires once, at whichever
// command a claim, a put and a replacement meet, and that a claim that fails gives back its occurrences.
//
// NewStore makes an empty store. It returns an opener of handles that always work, an opener of handles behind a
// network, and the network. The tests run on virtual time, so the server must live in the same bubble of
// [testing/synctest].
func Interrupted(t *testing.T, newStore func(t *testing.T) (well, broken Opener, n Network)) {
	t.Helper()
	whole, none := interrupted{writes: map[string]int{}}, interrupted{}
	world := func(t *testing.T, what string, test func(*interrupted)) {
		t.Helper()
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &interrupted{whole: &whole, none: &none, changes: map[string]map[string][]string{}}
				t.Cleanup(func() { time.Sleep(time.Hour) }) // at the end, so that pending operations finish
				well, broken, network := newStore(t)
				w.fixture, w.network = &fixture{T: t, open: well}, network
				behind := &fixture{T: t, open: broken}
				w.broken = behind.store()
				test(w)
			})
		})
	}
	world(t, "without a mutation", func(w *interrupted) {
		w.prepare()
		none.fired = w.fires()
	})
	world(t, "without a fault", func(w *interrupted) {
		w.prepare()
		for _, m := range w.mutations {
			w.network.Break(Hold, 1000)
			before := w.contents()
			w.must(m.Do(w.Context(), w.broken))
			w.note(m, before, w.contents())
			whole.writes[m.Name] = w.network.Mend()
		}
		whole.changes, whole.fired = w.changes, w.fires()
	})
	if t.Failed() {
		return
	}
	world(t, "with an old answer about the server's time", func(w *interrupted) {
		w.prepare()
		for _, m := range w.mutations {
			w.network.Lag(2 * store.Within / 3)
			_, err := w.broken.Now(w.Context())
			w.network.Mend()
			w.must(err)
			w.try(m)
		}
		w.judgeFired()
	})
	for _, m := range meetings {
		for _, last := range []bool{true, false} {
			which := "command"
			if !last {
				which = "commands from"
			}
			for n, more := 1, true; more && !t.Failed(); n++ {
				world(t, fmt.Sprintf("%s at %s %d", m.name, which, n), func(w *interrupted) { more = m.test(w, n, last) })
			}
		}
	}
	for n, more := 1, true; more && !t.Failed(); n++ {
		world(t, fmt.Sprintf("an expansion late at write %d", n), func(w *interrupted) { more = w.lateExpansion(n) })
	}
	for n, more := 1, true; more && !t.Failed(); n++ {
		world(t, fmt.Sprintf("an expansion cut after write %d, and ticks that pass", n), func(w *interrupted) {
			more = w.passedExpansion(n)
		})
	}
	for n, more := 1, true; more && !t.Failed(); n++ {
		world(t, fmt.Sprintf("a claim cut after write %d", n), func(w *interrupted) { more = w.lostClaim(n) })
	}
	for _, what := range []Break{CutBefore, CutAfter, Gap, Hold, Full} {
		for n := 1; n <= slices.Max(slices.Collect(maps.Values(whole.writes))); n++ {
			world(t, fmt.Sprintf("%s write %d", what, n), func(w *interrupted) {
				w.prepare()
				for _, m := range w.mutations {
					if n <= whole.writes[m.Name] {
						w.network.Break(what, n)
						w.try(m)
					}
				}
				w.judgeFired()
			})
		}
	}
}

// meetings are calls that meet calls of another handle: before the call's n-th command, or before each command from the
// n-th on. Each test reports whether the call had an n-th command.
var meetings = []struct {
	name string
	test func(w *interrupted, n int, last bool) bool
}{
	{"a claim meets replacements", func(w *interrupted, n int, last bool) bool {
		now := epoch.Add(2 * time.Hour) // late enough that an orphan of the first definition would be dropped
		present := newPut(met, epoch, 0, time.Hour)
		w.put(present)
		defer w.firesOnce(epoch, epoch.Add(time.Hour))
		return w.meet(n, last, func() error { return w.take(w.broken, now) }, func() error {
			present = replacing(present, edited(met, epoch.Add(time.Millisecond), 0, time.Hour))
			return w.store().Put(w.Context(), []store.Put{present})[0].Err
		})
	}},
	{"a put meets claims", func(w *interrupted, n int, last bool) bool {
		defer w.firesOnce(epoch, epoch.Add(time.Hour))
		return w.meet(n, last, func() error {
			return w.broken.Put(w.Context(), []store.Put{newPut(met, epoch, 0, time.Hour)})[0].Err
		}, func() error { return w.take(w.store(), epoch.Add(time.Second)) })
	}},
	{"a replacement meets claims", func(w *interrupted, n int, last bool) bool {
		present := newPut(met, epoch, 0, time.Hour)
		w.put(present)
		defer w.firesOnce(epoch, epoch.Add(time.Hour), epoch.Add(2*time.Hour))
		return w.meet(n, last, func() error {
			p := replacing(present, edited(met, epoch, 0, time.Hour, 2*time.Hour))
			return w.broken.Put(w.Context(), []store.Put{p})[0].Err
		}, func() error { return w.take(w.store(), epoch.Add(time.Second)) })
	}},
	{"burials meet deliveries", settles(store.Bury, store.Ack)},
	{"burials meet burials", settles(store.Bury, store.Bury)},
	{"misses meet deliveries", settles(store.Miss, store.Ack)},
	{"misses meet misses", settles(store.Miss, store.Miss)},
}

// settles has a settlement meet claims whose occurrences end in another way, since its lease is over. Each occurrence
// counts by the settlement that ends it alone; a missed one may be left out, if another claim ended one at that moment.
func settles(outcome, other store.Outcome) func(w *interrupted, n int, last bool) bool {
	return func(w *interrupted, n int, last bool) bool {
		w.put(newPut(met, epoch, 0, time.Second, 2*time.Second))
		var ends []store.Settlement
		for _, c := range w.claim(epoch.Add(time.Minute), 3) {
			ends = append(ends, settlement(c, outcome))
		}
		now, counts := epoch.Add(time.Minute), map[store.Outcome]int{outcome: len(ends)}
		more := w.meet(n, last, func() error { return w.broken.Settle(w.Context(), ends) }, func() error {
			now = now.Add(2 * lease)
			claim, err := w.store().Claim(w.Context(), claimParams(now, 1))
			var others []store.Settlement
			for _, c := range claim.Occurrences {
				counts[outcome]--
				counts[other]++
				end := settlement(c, other)
				end.At = now
				others = append(others, end)
			}
			return errors.Join(err, w.store().Settle(w.Context(), others))
		})
		j, err := store.ReadJob(w.Context(), w.store(), met)
		w.must(err)
		failed, missed := counts[store.Bury], counts[store.Miss]
		if j.Failed != failed || j.Missed > missed || outcome != store.Miss && j.Missed != missed {
			w.Errorf("%d failed and %d are missed; it must be %d and %d", j.Failed, j.Missed, failed, missed)
		}
		return more
	}
}

// met is the job of the meetings.
var met = name("met")

// meet makes a call, and makes another before its n-th command; unless last is set, before each later command too. It
// reports whether the call had an n-th command.
func (w *interrupted) meet(n int, last bool, call, other func() error) bool {
	w.Helper()
	var lock sync.Mutex
	w.network.Meet(n, last, func() {
		lock.Lock()
		defer lock.Unlock()
		if err := other(); err != nil {
			w.Errorf("beside the call: %v", err)
		}
	})
	w.must(call())
	return w.network.Mend() >= n
}

// take claims and acknowledges the due occurrences.
func (w *interrupted) take(s store.Store, now time.Time) error {
	claim, err := s.Claim(w.Context(), claimParams(now, 100))
	var settlements []store.Settlement
	for _, c := range claim.Occurrences {
		settlements = append(settlements, settlement(c, store.Ack))
	}
	w.taken = append(w.taken, claim.Occurrences...)
	return errors.Join(err, w.store().Settle(w.Context(), settlements))
}

// firesOnce expects that each of these instants fires exactly once, and no others.
func (w *interrupted) firesOnce(want ...time.Time) {
	w.Helper()
	fired := slices.Concat(w.taken, w.drain(epoch.Add(3*time.Hour)))
	fired = slices.DeleteFunc(fired, func(c store.Claimed) bool { return c.Name != met })
	w.expectTimes("fired", timestamps(fired, claimedTime), want...)
}

// lateExpansion: an expansion whose n-th write arrives late does not bring back occurrences that another expansion
// inserted and that have fired since. It reports whether the expansion had an n-th write.
func (w *interrupted) lateExpansion(n int) bool {
	a, now := w.claimedAdvance(met)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), store.Within)
	defer cancel()
	w.network.Break(Hold, n)
	if err := w.broken.Advance(ctx, []store.Advance{a}); err == nil {
		return false
	}
	time.Sleep(time.Until(begun.Add(store.Within)))
	now = now.Add(lease)
	j, token := w.claimJob(now)
	a = advanceOf(j, token, now)
	w.advance(a)
	w.must(w.take(w.store(), a.Cursor))
	w.network.Mend()
	time.Sleep(time.Minute)
	w.firesOnce(ticks(epoch, 10*time.Second, a.Cursor)...)
	return true
}

// passedExpansion: the ticks of an expansion that is cut after its n-th write fire, or count as missed by the next one,
// if they pass meanwhile and their jobs do not catch them up; none does both. It reports whether the expansion had an
// n-th write.
func (w *interrupted) passedExpansion(n int) bool {
	begins, ends := epoch.Add(17*time.Second), epoch.Add(10*time.Minute)
	none, latest := newRecurring(met, epoch, "@every 10s"), newEnding(name("ends"), begins, "@every 7s", ends)
	none.Job.Options.CatchUp, latest.Job.Options.CatchUp = job.CatchUpNone, job.CatchUpLatest
	w.put(none)
	w.put(latest)
	now := slices.MaxFunc([]time.Time{none.Job.ExpandAt, latest.Job.ExpandAt}, time.Time.Compare)
	ctx, cancel := context.WithTimeout(w.Context(), store.Within)
	defer cancel()
	first := w.advances(now)
	w.network.Break(CutAfter, n)
	err := w.broken.Advance(ctx, first)
	w.network.Mend()
	if err == nil {
		return false
	}
	all := w.advances(now.Add(time.Hour))
	w.must(w.store().Advance(w.Context(), all))
	for i := range all {
		a := &all[i]
		if missed := w.job(a.Name).Missed; missed != a.Missed-a.Left {
			w.Errorf("of %s, %d count as missed, but the advance tells %d, less %d", a.Name, missed, a.Missed, a.Left)
		}
	}
	fired := map[job.Name]int{}
	for _, c := range w.drain(now.Add(time.Hour)) {
		fired[c.Name]++
	}
	for n, want := range map[job.Name]int{
		none.Job.Name:   len(ticks(epoch, 10*time.Second, w.job(none.Job.Name).Cursor)),
		latest.Job.Name: len(ticks(begins, 7*time.Second, ends)),
	} {
		if missed := w.job(n).Missed; fired[n]+missed != want {
			w.Errorf("of %s, %d fired and %d were missed, of %d ticks", n, fired[n], missed, want)
		}
	}
	return true
}

// advances claims all jobs that are to be expanded, and returns their advances.
func (w *interrupted) advances(now time.Time) (all []store.Advance) {
	claimed := w.claimJobs(now, 10)
	if len(claimed.Jobs) != 2 {
		w.Fatalf("%d jobs are to be expanded, want 2", len(claimed.Jobs))
	}
	for _, j := range claimed.Jobs {
		all = append(all, advanceOf(j, claimed.Token, now))
	}
	return all
}

// lostClaim: occurrences of a claim that fails after its n-th write are due again once the network is mended, as if they
// had never been claimed. It reports whether the claim had an n-th write.
func (w *interrupted) lostClaim(n int) bool {
	w.put(newPut(met, epoch, 0, time.Second))
	ctx, cancel := context.WithTimeout(w.Context(), store.Within)
	defer cancel()
	w.network.Break(CutAfter, n)
	params := claimParams(epoch.Add(time.Minute), 10)
	_, err := w.broken.Claim(ctx, params)
	w.network.Mend()
	if err == nil {
		return false
	}
	time.Sleep(lease)
	again := w.claim(params.Now, 10)
	w.expectTimes("due again", timestamps(again, claimedTime), epoch, epoch.Add(time.Second))
	for _, c := range again {
		if c.Attempt != 1 || c.Reclaimed {
			w.Errorf("attempt %d, reclaimed %v", c.Attempt, c.Reclaimed)
		}
	}
	return true
}

// interrupted is a store whose mutations are made one after the other.
type interrupted struct {
	*fixture
	broken      store.Store // behind the network
	network     Network
	mutations   []Mutation
	taken       []store.Claimed
	whole, none *interrupted
	// changes has the changes of each job or record, by mutation and name.
	changes map[string]map[string][]string
	// writes has, by mutation, the number of writes that it sends if the network does not break.
	writes map[string]int
	// fired has the occurrences that fire in the end, by job.
	fired map[string][]string
}

// prepare fills the store for its mutations.
func (w *interrupted) prepare() { w.mutations = Mutations(w.T, w.store(), "") }

func (w *interrupted) contents() map[string]any { return Contents(w.T, w.store()) }

// note records the differences of the contents, by the names of jobs and records. It leaves out ids and revisions,
// which differ between stores.
func (w *interrupted) note(m Mutation, before, after map[string]any) {
	all := map[string][]string{}
	for _, change := range changes(before, after) {
		what, _, _ := strings.Cut(change, " ")
		name := strings.TrimPrefix(change, what+" ")
		if _, of, is := strings.Cut(name, " of "); is {
			name = of
		}
		is := strings.LastIndex(name, " is ")
		all[name[:is]] = append(all[name[:is]], what+name[is:])
	}
	for _, of := range all {
		slices.Sort(of)
	}
	w.changes[m.Name] = all
}

// try makes a mutation, mends the network after the mutation's time, and checks the changes until then and afterwards.
func (w *interrupted) try(m Mutation) {
	before, begun := w.contents(), time.Now()
	ctx, cancel := context.WithTimeout(w.Context(), store.Within)
	defer cancel()
	err := m.Do(ctx, w.broken)
	time.Sleep(time.Until(begun.Add(store.Within)))
	after := w.contents()
	w.network.Mend()
	time.Sleep(time.Minute)
	Unchanged(w.T, m.Name+", after its time", after, w.contents())
	w.note(m, before, after)
	for name := range w.changes[m.Name] {
		if w.whole.changes[m.Name][name] == nil {
			w.Errorf("%s changes %s", m.Name, name)
		}
	}
	for name, all := range w.whole.changes[m.Name] {
		done := w.changes[m.Name][name]
		switch {
		case len(done) > 0 && !slices.Equal(done, all):
			w.Errorf("%s changes a part of %s: %q, not %q (%v)", m.Name, name, done, all, err)
		case err == nil && len(done) == 0:
			w.Errorf("%s succeeds, and does not change %s", m.Name, name)
		case errors.Is(err, store.ErrNotDone) && len(done) > 0 && len(w.whole.changes[m.Name]) == 1:
			w.Errorf("%s changes %s, and answers that nothing was changed: %v", m.Name, name, err)
		case err != nil && !errors.Is(err, store.ErrUnavailable):
			w.Errorf("%s answers %v", m.Name, err)
		}
	}
}

// fires fires all remaining occurrences, and returns them by job.
func (w *interrupted) fires() map[string][]string {
	all := map[string][]string{}
	for _, c := range w.drain(epoch.Add(12 * time.Hour)) {
		name := c.Name.String()
		all[name] = append(all[name], fmt.Sprintf("%s %s", job.FormatTime(c.Timestamp), c.Callback.Data))
	}
	for _, of := range all {
		slices.Sort(of)
	}
	return all
}

// judgeFired compares the occurrences that fire in the end with those of a store with each mutation, or without it.
func (w *interrupted) judgeFired() {
	fired := w.fires()
	for _, m := range w.mutations {
		for name := range w.whole.changes[m.Name] {
			want, state := w.none.fired[name], "was not made"
			if len(w.changes[m.Name][name]) > 0 {
				want, state = w.whole.fired[name], "was made"
			}
			if !slices.Equal(fired[name], want) {
				w.Errorf("after %q, which %s, %s fires\n%s\nnot\n%s", m.Name, state, name,
					strings.Join(fired[name], "\n"), strings.Join(want, "\n"))
			}
		}
	}
}
