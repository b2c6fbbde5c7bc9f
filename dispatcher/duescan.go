package dispatcher

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// scanPageSize is the largest number of index entries that the store reads for one page of a scan.
	scanPageSize = 2000
	// scanAhead is the time ahead that a scan covers if its last page reaches that far. It is longer than necessary, so
	// that few occurrences are late if the store does not answer for a while.
	scanAhead = time.Minute
	// maxWriteDelay is the maximum duration of a write that makes an occurrence due at once.
	maxWriteDelay = 2 * time.Second
)

// The pause after a scan is scanPauseFactor times the scan's duration, so that scans take the store at most a fiftieth
// of its time. But it is at most maxScanPause, or the duration of the scan if that is longer, so that one slow answer
// does not leave this replica without due times.
const (
	scanPauseFactor = 50
	maxScanPause    = 2 // poll intervals
)

// scanner finds the lanes in which occurrences become due, at a cost that follows the due occurrences.
//
// An occurrence becomes due at or after the time at which it is written, unless it is submitted with an instant that
// has passed. So a scan reads the index of due times from a little before the last scan on: the recent part. Earlier
// due times are known already, except when the replica that wrote the occurrence has died, or its clock is behind, or
// the write took long. To find these too, each scan also reads one more page of the past part, from the oldest due time
// on, and begins again at its end. While all due lanes fit on one page, as they nearly always do, that page is the
// whole scan.
//
// Only one goroutine may use it at a time.
type scanner struct {
	store  store.Inspector
	poll   time.Duration // the poll interval
	early  time.Duration
	now    func() time.Time
	onPage func(ctx context.Context, lanes []store.LaneDue) // is called with each page before it is passed on

	known time.Time     // all lanes that were due at this time are known; zero before the first scan has ended
	past  store.LaneDue // where the past part continues; zero for the oldest due time
	// After an interrupted scan, recent is where its recent part continues, and begun the time at which it began; else
	// zero.
	recent store.LaneDue
	begun  time.Time
	took   time.Duration // the duration of the last scan
}

// scanPage is one page of a scan.
type scanPage struct {
	lanes []store.LaneDue
	err   error
	// last is set for the last page of a scan. If complete is set too, lanes has all lanes that become due, of all pages.
	last, complete bool
	start, end     time.Time // of the scan, and of the page
	reach          time.Time // of the last page: all due times up to this were found
}

// scan makes one scan and passes on each page as it comes. So lanes that were found count even if a later page fails.
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
	all      []store.LaneDue // the lanes of all pages, while complete
	err      error           // of one part of the store
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
		case past && next.Compare(s.recent) < 0: // the next scan continues there
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

// recentFrom returns the beginning of the recent part: a little before the last scan, also if the clock was set back
// since.
func (s *scan) recentFrom() time.Time {
	from, now := s.known.Round(0), s.start.Round(0) // the wall clock's times, which may go back
	if now.Before(from) {
		from = now
	}
	return from.Add(-maxWriteDelay).Truncate(time.Millisecond)
}

// page asks the store for a page of due times up to a time.
func (s *scan) page(after store.LaneDue, until time.Time) (store.DuePage, error) {
	call, cancel := context.WithTimeout(s.ctx, storeTimeout)
	defer cancel()
	return s.store.DueLanes(call, store.DueParams{After: after, Until: until, Limit: scanPageSize})
}

// needed returns the time up to which this scan must find due times: the end of the next scan, and one poll interval
// more.
func (s *scan) needed() time.Time {
	now := s.now()
	took := max(s.took, now.Sub(s.start))
	return now.Round(0).Add(s.early + 2*s.poll + restAfter(took, s.poll) + took)
}

// handOn passes on a page.
func (s *scan) handOn(p scanPage) {
	if s.complete {
		s.all = append(s.all, p.lanes...)
	}
	s.onPage(s.ctx, p.lanes)
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

// end passes on the last page. If a part of the store has failed, the next scan begins where this one began.
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

// restAfter returns the pause after a scan that took some time.
func restAfter(took, poll time.Duration) time.Duration {
	return min(scanPauseFactor*took, max(maxScanPause*poll, took))
}
