package dispatcher

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// scanPageSize is how many index entries the store reads at most for one page of a scan.
	scanPageSize = 2000
	// scanAhead is how far ahead a scan reaches if that is on its last page: farther than it must, so that a store that
	// does not answer for a while makes few occurrences late.
	scanAhead = time.Minute
	// maxWriteDelay is for how long a write may have been under way that makes an occurrence due at once.
	maxWriteDelay = 2 * time.Second
)

// How rarely the store is scanned if that takes long: it is busy with it for one part of the time in so many, unless
// the pause would be more than a few ticks, lest one slow answer leaves this replica without due times. Then the pause
// is as long as the scan.
const (
	busiest  = 50
	mostLate = 2 // ticks
)

// scanner finds the lanes in which occurrences become due, at a cost that follows the due occurrences.
//
// An occurrence becomes due no sooner than it is written, unless it is submitted with an instant that has passed. So a
// scan reads the index of due times from a little before the last scan on: the recent part. Earlier due times are known
// already, with exceptions: the replica that wrote the occurrence has died since, or its clock is behind, or the write
// took long. To find these too, each scan also reads one more page of the past part, from the oldest due time on, round
// and round. As long as all due lanes are on one page, as they nearly always are, that page is the whole scan.
//
// One goroutine uses it at a time.
type scanner struct {
	store store.Inspector
	tick  time.Duration
	early time.Duration
	now   func() time.Time
	meet  func(ctx context.Context, lanes []store.LaneDue) // is called with each page before it is handed on

	known time.Time     // all lanes that were due at this time are known; zero before the first scan has ended
	past  store.LaneDue // where the past part goes on; zero for the oldest due time
	// recent is where the recent part goes on if a scan was interrupted, and begun when that scan began; else zero.
	recent store.LaneDue
	begun  time.Time
	took   time.Duration // the last scan
}

// scanPage is one page of a scan.
type scanPage struct {
	lanes []store.LaneDue
	err   error
	// last tells that it is the last page of its scan. Then, if complete is set, the lanes are all lanes that become due,
	// of all pages.
	last, complete bool
	start, end     time.Time // of the scan, and of the page
	reach          time.Time // of the last page: all due times up to this were found
}

// scan makes one scan and hands on each page as it comes: lanes that were found count though a later page fails.
func (k *scanner) scan(ctx context.Context, pages chan<- scanPage) {
	s := scan{scanner: k, ctx: ctx, pages: pages, start: k.now()}
	s.run()
}

// scan is one scan under way.
type scan struct {
	*scanner
	ctx      context.Context //nolint:containedctx // it lasts no longer than the call
	pages    chan<- scanPage
	start    time.Time
	complete bool            // so far, the scan has read all due times from the oldest on
	all      []store.LaneDue // then, the lanes of all pages
	err      error           // of a part of the store
}

// run makes the scan.
func (s *scan) run() {
	at, past := s.recent, false
	if s.begun.IsZero() {
		s.begun, s.recent = s.start, store.LaneDue{}
		if past = !s.known.IsZero(); past {
			at, s.recent.DueAt = s.past, s.recentFrom()
		}
		s.complete = at == store.LaneDue{}
	}
	for {
		until := latestOf(s.needed(), s.now().Round(0).Add(s.early+scanAhead)).Truncate(time.Millisecond)
		page, err := s.page(at, until)
		if err != nil && len(page.Lanes) == 0 {
			s.send(scanPage{err: err, last: true})
			return
		}
		if err != nil { // lanes in the other parts of the store count nevertheless
			s.err, s.complete = err, false
		}
		next := page.Next
		switch {
		case next == store.LaneDue{} || next.DueAt.After(s.needed()):
			if next != (store.LaneDue{}) {
				until = next.DueAt
			}
			s.end(page, past, until.Add(-s.early))
			return
		case past && next.Compare(s.recent) < 0: // the next scan goes on there
			at, s.past, s.complete = s.recent, next, false
		case past:
			at, s.past, s.recent = next, store.LaneDue{}, next
		default:
			at, s.recent = next, next
		}
		past = false
		s.handOn(scanPage{lanes: page.Lanes})
	}
}

// recentFrom is where the recent part begins: a little before the last scan, also by a clock that was set back since.
func (s *scan) recentFrom() time.Time {
	from, now := s.known.Round(0), s.start.Round(0) // the wall clock's, which goes back if it is set
	if now.Before(from) {
		from = now
	}
	return from.Add(-maxWriteDelay).Truncate(time.Millisecond)
}

// page asks the store for a page, up to a time.
func (s *scan) page(after store.LaneDue, until time.Time) (store.DuePage, error) {
	call, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	return s.store.DueLanes(call, store.DueParams{After: after, Until: until, Limit: scanPageSize})
}

// needed is up to when this scan must find due times: until the next one has ended, with a tick to spare.
func (s *scan) needed() time.Time {
	now := s.now()
	took := max(s.took, now.Sub(s.start))
	return now.Round(0).Add(s.early + 2*s.tick + restAfter(took, s.tick) + took)
}

// handOn hands on a page.
func (s *scan) handOn(p scanPage) {
	if s.complete {
		s.all = append(s.all, p.lanes...)
	}
	s.meet(s.ctx, p.lanes)
	if p.last && s.complete {
		p.lanes, p.complete = store.FirstOfEach(s.all), true
	}
	s.send(p)
}

// send sends a page. After the last one, the next scan may begin.
func (s *scan) send(p scanPage) {
	p.start, p.end = s.start, s.now()
	if p.last {
		s.took = p.end.Sub(p.start)
	}
	s.pages <- p
}

// end hands on the last page. If a part of the store has failed, the next scan begins where this one has.
func (s *scan) end(page store.DuePage, past bool, reach time.Time) {
	if past {
		s.past = store.LaneDue{}
	}
	if s.err == nil {
		s.known = s.begun
	}
	s.begun, s.recent = time.Time{}, store.LaneDue{}
	s.handOn(scanPage{lanes: page.Lanes, err: s.err, last: true, reach: reach})
}

// restAfter is the pause after a scan that took some time.
func restAfter(took, tick time.Duration) time.Duration {
	return min(busiest*took, max(mostLate*tick, took))
}
