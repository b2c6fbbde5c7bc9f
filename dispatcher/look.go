package dispatcher

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// lookPage is how much of an index the store reads at most for one page of a look.
	lookPage = 2000
	// lookAhead is how far ahead a look goes, if that is on the page: farther than it must, so that a store which does
	// not answer for a while makes little late.
	lookAhead = time.Minute
	// lately is for how long a write may have been on its way that makes something due at once.
	lately = 2 * time.Second
)

// How rarely the store is asked what becomes due if that takes long: it is busy with it for one part of the time in so
// many, unless that would be to wait for more than a few ticks, lest one slow answer leaves this replica blind. Then it
// is left alone for as long as it took.
const (
	busiest  = 50
	mostLate = 2 // ticks
)

// looks tell this replica in which lanes something becomes due, each what has changed since the one before. Whatever
// becomes due does so no sooner than it is written, but for what is submitted with an instant that has passed. So a
// look is for what becomes due from a little before the last one on: the recent. What was due before that is known, or
// it was submitted by another replica that has since died, or by one whose clock is behind, or it took long to be
// written. To find that too, each look also goes on by one page through all that is due, from the oldest on. As long as
// all of it is on one page, as it nearly always is, that page is the whole look.
//
// One goroutine uses it at a time.
type looks struct {
	store store.Inspector
	tick  time.Duration
	early time.Duration
	now   func() time.Time
	meet  func(ctx context.Context, lanes []store.LaneDue) // what is told, before it is

	known time.Time     // as of when all was told that was due; zero if it never was
	past  store.LaneDue // where the look through all that is due goes on; zero for the oldest
	// recent is where the look for the recent goes on, if it broke off, and begun when it began; else zero.
	recent store.LaneDue
	begun  time.Time
	took   time.Duration // the last look
}

// told is what one page of a look has told.
type told struct {
	lanes []store.LaneDue
	err   error
	// ended tells that it is the last of its look. Then, if whole is set, the lanes are all of which something becomes
	// due, of all pages.
	ended, whole bool
	start, end   time.Time // of the look, and of the page
	reach        time.Time // of the last page: up to when all that becomes due was told
}

// look makes one look, and hands on each page as it comes: what was found is found, though a later one fails.
func (k *looks) look(ctx context.Context, pages chan<- told) {
	l := looking{looks: k, ctx: ctx, pages: pages, start: k.now()}
	l.run()
}

// looking is one look under way.
type looking struct {
	*looks
	ctx   context.Context //nolint:containedctx // it lasts no longer than the call
	pages chan<- told
	start time.Time
	whole bool            // so far, all that is due is looked at, from the oldest on
	all   []store.LaneDue // then, what was told
	err   error           // of a part of the store
}

// run makes the look.
func (l *looking) run() {
	at, past := l.recent, false
	if l.begun.IsZero() {
		l.begun, l.recent = l.start, store.LaneDue{}
		if past = !l.known.IsZero(); past {
			at, l.recent.DueAt = l.past, l.recentFrom()
		}
		l.whole = at == store.LaneDue{}
	}
	for {
		until := latestOf(l.needed(), l.now().Round(0).Add(l.early+lookAhead)).Truncate(time.Millisecond)
		page, err := l.page(at, until)
		if err != nil && len(page.Lanes) == 0 {
			l.send(told{err: err, ended: true})
			return
		}
		if err != nil { // what the other parts of the store have is told nevertheless
			l.err, l.whole = err, false
		}
		next := page.Next
		switch {
		case next == store.LaneDue{} || next.DueAt.After(l.needed()):
			if next != (store.LaneDue{}) {
				until = next.DueAt
			}
			l.end(page, past, until.Add(-l.early))
			return
		case past && next.Compare(l.recent) < 0: // it goes on there the next time
			at, l.past, l.whole = l.recent, next, false
		case past:
			at, l.past, l.recent = next, store.LaneDue{}, next
		default:
			at, l.recent = next, next
		}
		past = false
		l.tell(told{lanes: page.Lanes})
	}
}

// recentFrom is from when on the recent is looked at: a little before the last look, also by a clock that was set back
// since.
func (l *looking) recentFrom() time.Time {
	from, now := l.known.Round(0), l.start.Round(0) // the wall clock's, which goes back if it is set
	if now.Before(from) {
		from = now
	}
	return from.Add(-lately).Truncate(time.Millisecond)
}

// page asks the store for a page, up to a time.
func (l *looking) page(after store.LaneDue, until time.Time) (store.DuePage, error) {
	call, cancel := context.WithTimeout(l.ctx, storeTimeout)
	defer cancel()
	return l.store.DueLanes(call, store.DueParams{After: after, Until: until, Limit: lookPage})
}

// needed is up to when this look must tell what becomes due: until the next one has told, with a tick to spare.
func (l *looking) needed() time.Time {
	now := l.now()
	took := max(l.took, now.Sub(l.start))
	return now.Round(0).Add(l.early + 2*l.tick + restAfter(took, l.tick) + took)
}

// tell hands on a page.
func (l *looking) tell(t told) {
	if l.whole {
		l.all = append(l.all, t.lanes...)
	}
	l.meet(l.ctx, t.lanes)
	if t.ended && l.whole {
		t.lanes, t.whole = store.FirstOfEach(l.all), true
	}
	l.send(t)
}

// send sends a page. After the last one, the next look may begin.
func (l *looking) send(t told) {
	t.start, t.end = l.start, l.now()
	if t.ended {
		l.took = t.end.Sub(t.start)
	}
	l.pages <- t
}

// end hands on the last page. If a part of the store has failed, the next look begins where this one has.
func (l *looking) end(page store.DuePage, past bool, reach time.Time) {
	if past {
		l.past = store.LaneDue{}
	}
	if l.err == nil {
		l.known = l.begun
	}
	l.begun, l.recent = time.Time{}, store.LaneDue{}
	l.tell(told{lanes: page.Lanes, err: l.err, ended: true, reach: reach})
}

// restAfter is for how long the store is left alone after a look that took some time.
func restAfter(took, tick time.Duration) time.Duration {
	return min(busiest*took, max(mostLate*tick, took))
}
