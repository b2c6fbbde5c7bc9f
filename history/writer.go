package history

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Bounds of memory and of writes.
const (
	gatherTime  = 250 * time.Millisecond // the longest wait of an entry for others of the same write
	longestWait = 32_768                 // entries in memory that are not written; more are dropped
	enough      = longestWait / 4        // entries that are written without waiting for more
	mostRecent  = 1000                   // entries in one recent record
	fewRecent   = 128                    // entries from which on a recent record gets no more
	perSegment  = 512                    // entries in one segment
	longestBody = 60 << 10               // bytes in a record; a larger one is split

	mostInRun  = 65_536 // entries in a run
	mostParts  = 256    // recent records in a run, all of which each reader reads
	longestRun = time.Hour

	// beatTime is the interval at which a writer refreshes its run's record. A reader takes a run without a refresh for
	// deadTime as left by a replica that died.
	beatTime = 10 * time.Second
	deadTime = 25 * time.Second
	// usualReach is the least Config.Reach.
	usualReach = time.Minute

	// mostOfJob bounds the entries of one job, class and hour. Only runs with countsFrom entries of the job count.
	mostOfJob  = 100_000
	countsFrom = 1000

	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Config configures a Writer. Records and Policy must be set.
type Config struct {
	Records store.Records
	// Policy is the policy of tenants that have none of their own. Its Keep is more than zero.
	Policy
	// PolicyOf returns the policy of a tenant. It must not block, and must be safe for concurrent use. Nil means Policy
	// for all.
	PolicyOf func(tenant string) Policy
	// Reach is the longest time from an attempt to its entry. After a replica's death, readers report that time as a gap.
	// It is at least one minute.
	Reach time.Duration
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Logger logs when the store fails, and when it works again. Nil logs nothing.
	Logger *slog.Logger
	// Registerer registers the metrics. Nil means none.
	Registerer prometheus.Registerer
}

// Writer writes entries to a store, in a goroutine of its own. A nil Writer writes nothing.
type Writer struct {
	cfg     Config
	codec   codec
	metrics metrics

	lock    sync.Mutex
	waiting []*Entry
	dropped Gap
	ended   bool

	wake  chan struct{} // signals that entries wait, or that the writer was closed
	done  chan struct{} // closed when the goroutine has ended
	stop  context.CancelFunc
	run   running
	kept  tally
	spoke bool // whether a failure was logged, and its end was not
}

// running is the run that is being written. Only the writer's goroutine uses it.
type running struct {
	id     string
	begun  time.Time
	full   [][]byte  // the bodies of full recent records
	tail   []*Entry  // the entries of the last recent record
	gap    Gap       // of the last recent record
	count  int       // entries in all
	beatAt time.Time // the time of the last write
}

type metrics struct {
	written, dropped, bytes prometheus.Counter
}

// NewWriter returns a writer. Close ends it.
func NewWriter(cfg Config) *Writer {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.PolicyOf == nil {
		cfg.PolicyOf = func(string) Policy { return cfg.Policy }
	}
	cfg.Reach = max(cfg.Reach, usualReach).Truncate(time.Millisecond)
	ctx, stop := context.WithCancel(context.Background())
	w := &Writer{
		cfg: cfg, codec: newCodec(), wake: make(chan struct{}, 1), done: make(chan struct{}), stop: stop,
		kept: tally{most: mostOfJob},
	}
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

// Record queues entries to be written soon. It does not block. Entries beyond the bound are dropped and counted, and
// readers report the gap. The entries must not be changed afterwards. Record is safe for concurrent use.
func (w *Writer) Record(entries ...*Entry) {
	if w == nil {
		return
	}
	if entries = w.wanted(entries); len(entries) == 0 {
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
	if taken < len(entries) {
		w.metrics.dropped.Add(float64(len(entries) - taken))
	}
	w.signal()
}

// wanted returns the entries that the policies of their tenants keep.
func (w *Writer) wanted(entries []*Entry) []*Entry {
	p := policies{ask: w.cfg.PolicyOf}
	i := 0
	for i < len(entries) && p.of(entries[i].Name.Tenant).wants(entries[i].Kind) {
		i++
	}
	if i == len(entries) { // the usual case
		return entries
	}
	wanted := slices.Clone(entries[:i])
	for _, e := range entries[i:] {
		if p.of(e.Name.Tenant).wants(e.Kind) {
			wanted = append(wanted, e)
		}
	}
	return wanted
}

// policies caches the last policy: successive entries mostly have the same tenant.
type policies struct {
	ask    func(tenant string) Policy
	tenant string
	last   Policy
}

func (p *policies) of(tenant string) Policy {
	if tenant != p.tenant || tenant == "" {
		p.tenant, p.last = tenant, p.ask(tenant)
	}
	return p.last
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // the signal that waits covers this one too
	}
}

// Close writes the queued entries, and completes the run. It gives up after 5 s; entries that are not written are lost.
// It may be called more than once.
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

// loop writes the queued entries in batches. It writes a run's record at once, and keeps one in the store all the time,
// so that readers notice the death of the replica.
func (w *Writer) loop(ctx context.Context) {
	defer close(w.done)
	defer w.stop()
	w.begin()
	w.write(ctx)
	for {
		ended := w.gather()
		w.write(ctx)
		if ended || w.run.over(w.cfg.Now()) {
			w.complete(ctx, ended)
		}
		if ended {
			return
		}
	}
}

// begin begins a run.
func (w *Writer) begin() {
	now := w.cfg.Now()
	w.run = running{id: runID(now), begun: now}
}

// gather waits until a write is due, and reports whether the writer was closed.
func (w *Writer) gather() (ended bool) {
	var over <-chan time.Time
	now := w.cfg.Now()
	next := beatTime - now.Sub(w.run.beatAt)
	if w.run.count > 0 {
		next = min(next, longestRun-now.Sub(w.run.begun))
	}
	due := time.NewTimer(next)
	defer due.Stop()
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
		case <-due.C:
			return false
		}
	}
}

// take moves the queued entries and the gap to the run. It returns the number of entries, and whether there was
// anything.
func (w *Writer) take() (n int, some bool) {
	w.lock.Lock()
	taken, gap := w.waiting, w.dropped
	w.waiting, w.dropped = nil, Gap{}
	w.lock.Unlock()
	w.run.tail = append(w.run.tail, taken...)
	w.run.gap = w.run.gap.with(gap)
	w.run.count += len(taken)
	return len(taken), len(taken) > 0 || !gap.none()
}

// write writes the queued entries as recent records. Without entries, it refreshes the last record every beatTime.
// While the last record has few entries, more are added and it is rewritten. This bounds both the number of records and
// the bytes that are rewritten.
func (w *Writer) write(ctx context.Context) {
	taken, some := w.take()
	now := w.cfg.Now()
	if !some && now.Sub(w.run.beatAt) < beatTime {
		return
	}
	w.run.beatAt = now
	if w.store(ctx, w.recent()) {
		w.metrics.written.Add(float64(taken))
	} else {
		w.metrics.dropped.Add(float64(taken))
	}
}

// recent returns the changes that write the run's tail.
func (w *Writer) recent() (changes []store.RecordChange) {
	rest, gap := w.run.tail, w.run.gap
	for first := true; first || len(rest) > 0; first = false {
		part := rest[:min(len(rest), mostRecent)]
		around := margin{gap, w.cfg.Reach}
		body := w.codec.encodeSegment(part, around)
		for len(body) > longestBody && len(part) > 1 { // the keys are long, or all errors differ
			part = part[:len(part)/2]
			body = w.codec.encodeSegment(part, around)
		}
		n := len(part)
		changes = append(changes, w.put(recentCollection, partKey(w.run.id, len(w.run.full)), body, w.newest(part, gap),
			w.longest(part)))
		if n < fewRecent && n == len(rest) { // the record takes more
			w.run.tail, w.run.gap = rest, gap
			return changes
		}
		w.run.full = append(w.run.full, body)
		rest, gap = rest[n:], Gap{}
	}
	w.run.tail, w.run.gap = nil, Gap{}
	return changes
}

// newest returns the latest time of entries and a gap. Without entries, it is the present.
func (w *Writer) newest(entries []*Entry, gap Gap) (at time.Time) {
	if at = gap.Until; len(entries) == 0 {
		at = w.cfg.Now()
	}
	for _, e := range entries {
		if e.At.After(at) {
			at = e.At
		}
	}
	return at
}

// longest returns the longest retention of the entries of one record.
func (w *Writer) longest(entries []*Entry) (keep time.Duration) {
	p := policies{ask: w.cfg.PolicyOf}
	for _, e := range entries {
		keep = max(keep, p.of(e.Name.Tenant).Keep)
	}
	if keep == 0 { // there are no entries, or their policies changed
		return w.cfg.Keep
	}
	return keep
}

// put returns the change that writes a record. The record expires the retention after its newest time.
func (w *Writer) put(collection, key string, body []byte, newest time.Time, keep time.Duration) store.RecordChange {
	c := w.change(collection, key)
	c.Body, c.ExpiresAt = body, newest.Add(keep).Truncate(time.Millisecond)
	w.metrics.bytes.Add(float64(len(body)))
	return c
}

// change returns the change that deletes a record.
func (w *Writer) change(collection, key string) store.RecordChange {
	now := w.cfg.Now().Truncate(time.Millisecond)
	return store.RecordChange{Collection: collection, Key: key, Version: job.NewRevision(now), Now: now}
}

// store writes changes, and retries while the store is unavailable. It logs and skips a part that the store refuses. It
// returns false if ctx ended first.
func (w *Writer) store(ctx context.Context, changes []store.RecordChange) bool {
	for failures := 0; len(changes) > 0; failures++ {
		// The timeout is within a store's bound for a change. A part is small, since a store may write it in one transaction.
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

// tell logs that the history can't be written, and that it can be again.
func (w *Writer) tell(err error) {
	switch {
	case err != nil && !w.spoke:
		w.cfg.Logger.Warn("history can't be written now; when too much of it waits, it is dropped", "error", err)
	case err == nil && w.spoke:
		w.cfg.Logger.Info("history is written again")
	}
	w.spoke = err != nil
}
