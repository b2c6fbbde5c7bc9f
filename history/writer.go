package history

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Bounds of what is written and kept in memory.
const (
	gatherTime  = 250 * time.Millisecond // how long an entry may wait for others to be written with it
	longestWait = 32_768                 // entries that wait to be written; more are dropped
	enough      = longestWait / 4        // entries that wait for no others: each write costs the store a commit
	mostRecent  = 1000                   // entries in one recent record
	fewRecent   = 128                    // entries in one recent record from which on no more are added to it
	perSegment  = 512                    // entries in one segment
	longestBody = 60 << 10               // bytes; a record that would be larger is written as two

	mostInRun  = 65_536 // entries; also
	mostParts  = 256    // recent records, each of which readers read,
	longestRun = time.Hour

	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Config configures a Writer. Records and Keep must be set.
type Config struct {
	Records store.Records
	// Keep is how long entries are kept, more than zero.
	Keep time.Duration
	// Failures keeps no entries of deliveries.
	Failures bool
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Logger is told when entries are dropped, and when that has ended. Nil tells nobody.
	Logger *slog.Logger
	// Registerer is told of the metrics. Nil has none.
	Registerer prometheus.Registerer
}

// Writer writes entries to a store, behind those who record them. A nil Writer writes nothing.
type Writer struct {
	cfg     Config
	codec   codec
	metrics metrics

	lock    sync.Mutex
	waiting []*Entry
	dropped Gap
	ended   bool

	wake  chan struct{} // tells that something waits, or that it has ended
	done  chan struct{} // closed when all is written
	stop  context.CancelFunc
	run   running
	spoke bool // whether it was said that entries are dropped
}

// running is the run that is being written. Only the writer's goroutine has it.
type running struct {
	id    string
	begun time.Time
	full  [][]byte // the bodies of recent records that get no more entries
	tail  []*Entry // what is in the last one, or will be
	gap   Gap      // of the last one
	count int      // entries in all
}

type metrics struct {
	written, dropped, bytes prometheus.Counter
}

// NewWriter makes a writer and has it work until it is closed.
func NewWriter(cfg Config) *Writer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &Writer{cfg: cfg, codec: newCodec(), wake: make(chan struct{}, 1), done: make(chan struct{}), stop: stop}
	w.metrics = metrics{
		written: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_history_written_total", Help: "Entries of history that were written.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_history_dropped_total",
			Help: "Entries of history that were dropped since the store was slow or away. No delivery is lost with them.",
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_history_written_bytes_total",
			Help: "Bytes of history that were written to the store, among them what was later replaced by sorted segments.",
		}),
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(w.metrics.written, w.metrics.dropped, w.metrics.bytes)
	}
	go w.loop(ctx)
	return w
}

// Record takes entries to be written soon. It does not block, and takes none that can't be held: those are counted, and
// readers are told of the time at which they are missing. The entries are the writer's from then on. It is safe for
// concurrent use.
func (w *Writer) Record(entries ...*Entry) {
	if w == nil {
		return
	}
	if w.cfg.Failures {
		entries = slices.DeleteFunc(slices.Clone(entries), func(e *Entry) bool { return e.Kind == Delivered })
	}
	if len(entries) == 0 {
		return
	}
	w.lock.Lock()
	taken := min(len(entries), max(0, longestWait-len(w.waiting)))
	if w.ended {
		taken = 0
	}
	w.waiting = append(w.waiting, entries[:taken]...)
	for _, e := range entries[taken:] {
		w.dropped = w.dropped.with(Gap{e.At, e.At})
	}
	w.lock.Unlock()
	w.metrics.dropped.Add(float64(len(entries) - taken))
	w.signal()
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it will see this too
	}
}

// Close writes what was recorded, and completes the run. It gives up after 5 s; what is not written by then is lost. It
// may be called again.
func (w *Writer) Close() error {
	if w == nil {
		return nil
	}
	w.lock.Lock()
	w.ended = true
	w.lock.Unlock()
	w.signal()
	timeout := time.AfterFunc(closeTimeout, w.stop)
	defer timeout.Stop()
	<-w.done
	return nil
}

// loop writes what waits: when there is enough for a record, or the first has waited for a while.
func (w *Writer) loop(ctx context.Context) {
	defer close(w.done)
	defer w.stop()
	for {
		ended := w.gather()
		w.write(ctx)
		if ended || w.run.over(w.cfg.Now()) {
			w.complete(ctx)
		}
		if ended {
			return
		}
	}
}

// gather waits until something is to be done, and tells whether the writer was closed.
func (w *Writer) gather() (ended bool) {
	var over, late <-chan time.Time
	if w.run.count > 0 {
		timer := time.NewTimer(longestRun - w.cfg.Now().Sub(w.run.begun))
		defer timer.Stop()
		late = timer.C
	}
	for {
		w.lock.Lock()
		waiting, ended := len(w.waiting), w.ended
		some := waiting > 0 || !w.dropped.none()
		w.lock.Unlock()
		if ended || waiting >= enough {
			return ended
		}
		if some && over == nil {
			timer := time.NewTimer(gatherTime)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-w.wake:
		case <-over:
			return false
		case <-late:
			return false
		}
	}
}

// take takes what waits, for the run: so many entries.
func (w *Writer) take() (n int, some bool) {
	w.lock.Lock()
	taken, gap := w.waiting, w.dropped
	w.waiting, w.dropped = nil, Gap{}
	w.lock.Unlock()
	if len(taken) == 0 && gap.none() {
		return 0, false
	}
	if w.run.id == "" {
		now := w.cfg.Now()
		w.run = running{id: runID(now), begun: now}
	}
	for _, e := range taken {
		e.trim()
	}
	w.run.tail = append(w.run.tail, taken...)
	w.run.gap = w.run.gap.with(gap)
	w.run.count += len(taken)
	return len(taken), true
}

// trim bounds what an entry holds, and brings it to what is stored.
func (e *Entry) trim() {
	if len(e.Error) > MaxError {
		e.Error = strings.ToValidUTF8(e.Error[:MaxError-len("…")], "") + "…"
	}
	e.At = e.At.Truncate(time.Millisecond).UTC()
}

// write writes what has been recorded as recent records. The last record is written again with more entries, as long as
// it has few: so there are not too many of them, and what is written again is little.
func (w *Writer) write(ctx context.Context) {
	taken, some := w.take()
	if !some {
		return
	}
	if w.store(ctx, w.recent()) {
		w.metrics.written.Add(float64(taken))
	} else {
		w.metrics.dropped.Add(float64(taken))
	}
}

// recent are the changes that write the run's tail.
func (w *Writer) recent() (changes []store.RecordChange) {
	rest, gap := w.run.tail, w.run.gap
	for first := true; first || len(rest) > 0; first = false {
		part := rest[:min(len(rest), mostRecent)]
		body := w.codec.encodeSegment(part, gap)
		for len(body) > longestBody && len(part) > 1 { // long keys, or errors that all differ
			part = part[:len(part)/2]
			body = w.codec.encodeSegment(part, gap)
		}
		n := len(part)
		changes = append(changes, w.put(recentCollection, partKey(w.run.id, len(w.run.full)), body, newest(part, gap)))
		if n < fewRecent && n == len(rest) { // there is room in it
			w.run.tail, w.run.gap = rest, gap
			return changes
		}
		w.run.full = append(w.run.full, body)
		rest, gap = rest[n:], Gap{}
	}
	w.run.tail, w.run.gap = nil, Gap{}
	return changes
}

// newest is the time up to which entries and a gap reach.
func newest(entries []*Entry, gap Gap) (at time.Time) {
	at = gap.Until
	for _, e := range entries {
		if e.At.After(at) {
			at = e.At
		}
	}
	return at
}

// put is the change that writes a record.
func (w *Writer) put(collection, key string, body []byte, newest time.Time) store.RecordChange {
	c := w.change(collection, key)
	c.Body, c.ExpiresAt = body, newest.Add(w.cfg.Keep).Truncate(time.Millisecond)
	w.metrics.bytes.Add(float64(len(body)))
	return c
}

// change is the change that deletes a record.
func (w *Writer) change(collection, key string) store.RecordChange {
	now := w.cfg.Now().Truncate(time.Millisecond)
	return store.RecordChange{Collection: collection, Key: key, Version: job.NewRevision(now), Now: now}
}

// store makes changes, and tries again until it succeeds or ctx ends. Meanwhile entries wait, and then are dropped. It
// tells whether all were made.
func (w *Writer) store(ctx context.Context, changes []store.RecordChange) bool {
	for failures := 0; len(changes) > 0; failures++ {
		// No longer than a store grants a mutation; and few at once, since a store may make them in one transaction.
		part := changes[:min(len(changes), 64)]
		call, cancel := context.WithTimeout(ctx, writeTimeout)
		err := cmp.Or(w.cfg.Records.WriteRecords(call, part)...)
		cancel()
		switch {
		case err == nil:
			changes, failures = changes[len(part):], 0
			w.tell(nil)
			continue
		case !errors.Is(err, store.ErrUnavailable):
			w.cfg.Logger.Error("a part of the history can't be written", "error", err)
			changes = changes[len(part):]
			continue
		}
		w.tell(err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(time.Duration(failures+1)*100*time.Millisecond, 2*time.Second)):
		}
	}
	return true
}

// tell logs that the history can't be written, or that it can again.
func (w *Writer) tell(err error) {
	switch {
	case err != nil && !w.spoke:
		w.cfg.Logger.Warn("history can't be written now; when too much of it waits, it is dropped", "error", err)
	case err == nil && w.spoke:
		w.cfg.Logger.Info("history is written again")
	}
	w.spoke = err != nil
}

// over tells whether a run is to be completed.
func (r *running) over(now time.Time) bool {
	return r.id != "" && (r.count >= mostInRun || len(r.full) >= mostParts || now.Sub(r.begun) >= longestRun)
}

// complete replaces the recent records of a run by sorted segments. If that fails, they stay as they are.
func (w *Writer) complete(ctx context.Context) {
	r := w.run
	w.run = running{}
	if r.id == "" {
		return
	}
	segments, described, ok := r.sorted(w.codec)
	if !ok { // it was made here, so that can't be; what is recent can be read all the same
		return
	}
	newest := described.until
	if described.gap.Until.After(newest) {
		newest = described.gap.Until
	}
	var changes []store.RecordChange
	for i, body := range segments {
		changes = append(changes, w.put(segmentCollection, partKey(r.id, i), body, newest))
	}
	// The record of the run comes after its segments, since from then on readers go by them, and not by what is recent.
	changes = append(changes, w.put(runCollection, r.id, w.codec.encodeRun(&described), newest))
	if !w.store(ctx, changes) {
		return
	}
	changes = nil
	for i := range len(r.full) + 1 {
		changes = append(changes, w.change(recentCollection, partKey(r.id, i)))
	}
	w.store(ctx, changes)
}

// sorted makes the segments of a run, and describes it.
func (r *running) sorted(z codec) (bodies [][]byte, described run, ok bool) {
	described = run{id: r.id, gap: r.gap}
	all := slices.Grow(slices.Clone(r.tail), r.count)
	for _, body := range r.full {
		s, err := z.decodeSegment(body, nil)
		if err != nil {
			return nil, described, false
		}
		for i := range s.entries {
			all = append(all, &s.entries[i])
		}
		described.gap = described.gap.with(s.gap)
	}
	sortByJob(all)
	var byClass [classes][]*Entry
	for i, e := range all {
		if i == 0 || e.At.Before(described.first) {
			described.first = e.At
		}
		if e.At.After(described.until) {
			described.until = e.At
		}
		c := classOf(e.Kind)
		byClass[c] = append(byClass[c], e)
	}
	for c, rows := range byClass {
		before := ""
		for len(rows) > 0 {
			n := min(len(rows), perSegment)
			body := z.encodeSegment(rows[:n], Gap{})
			for len(body) > longestBody && n > 1 {
				n /= 2
				body = z.encodeSegment(rows[:n], Gap{})
			}
			at := ""
			if len(described.at[c]) > 0 {
				at = separator(before, sortKey(rows[0].Name))
			}
			described.at[c] = append(described.at[c], at)
			bodies = append(bodies, body)
			before = sortKey(rows[n-1].Name)
			rows = rows[n:]
		}
	}
	return bodies, described, true
}
