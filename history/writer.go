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

	// A run says this often that it is still being written. Readers take one that has not for so long as left by a replica
	// that died.
	beatTime = 10 * time.Second
	deadTime = 25 * time.Second
	// No longer than this lie between an attempt and its entry, unless the configuration has more.
	usualReach = time.Minute

	// What is kept of one job in an hour, of each class, and from how many entries in a run on they count for that.
	mostOfJob  = 100_000
	countsFrom = 1000

	writeTimeout = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Config configures a Writer. Records and Policy must be set.
type Config struct {
	Records store.Records
	// Policy says what is kept. Its Keep is more than zero.
	Policy
	// PolicyOf returns the policy of a tenant. It must not block, and must be safe for concurrent use. Nil is Policy for
	// all.
	PolicyOf func(tenant string) Policy
	// Reach is the longest time from an attempt to its entry; readers are told of it when the replica dies. Zero is a
	// minute.
	Reach time.Duration
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
	kept  tally
	spoke bool // whether it was said that entries are dropped
}

// running is the run that is being written. Only the writer's goroutine has it.
type running struct {
	id    string
	begun time.Time
	full  [][]byte  // the bodies of recent records that get no more entries
	tail  []*Entry  // what is in the last one, or will be
	gap   Gap       // of the last one
	count int       // entries in all
	told  time.Time // when the store last heard of it
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

// Record takes entries to be written soon. It does not block, and takes none that can't be held: those are counted, and
// readers are told of the time at which they are missing. The entries must not be changed any more. It is safe for
// concurrent use.
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

// wanted are the entries that the policies of their tenants keep.
func (w *Writer) wanted(entries []*Entry) []*Entry {
	p := policies{ask: w.cfg.PolicyOf}
	i := 0
	for i < len(entries) && p.of(entries[i].Name.Tenant).wants(entries[i].Kind) {
		i++
	}
	if i == len(entries) { // mostly
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

// policies remembers the last one that was asked for: entries of one tenant mostly come together.
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

// loop writes what waits: when there is enough for a record, or the first has waited for a while. From its beginning on
// there is always a run in the store, so that readers see when it was left.
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

// gather waits until something is to be done, and tells whether the writer was closed.
func (w *Writer) gather() (ended bool) {
	var over <-chan time.Time
	now := w.cfg.Now()
	next := beatTime - now.Sub(w.run.told)
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

// take takes what waits, for the run: so many entries.
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

// write writes what has been recorded as recent records, or else tells that the run is still being written, if that is
// due. The last record is written again with more entries, as long as it has few: so there are not too many of them,
// and what is written again is little.
func (w *Writer) write(ctx context.Context) {
	taken, some := w.take()
	now := w.cfg.Now()
	if !some && now.Sub(w.run.told) < beatTime {
		return
	}
	w.run.told = now
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
		around := margin{gap, w.cfg.Reach}
		body := w.codec.encodeSegment(part, around)
		for len(body) > longestBody && len(part) > 1 { // long keys, or errors that all differ
			part = part[:len(part)/2]
			body = w.codec.encodeSegment(part, around)
		}
		n := len(part)
		changes = append(changes, w.put(recentCollection, partKey(w.run.id, len(w.run.full)), body, w.newest(part, gap),
			w.longest(part)))
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

// newest is the time up to which a record with entries and a gap tells something.
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

// longest is how long entries are kept that are in one record.
func (w *Writer) longest(entries []*Entry) (keep time.Duration) {
	p := policies{ask: w.cfg.PolicyOf}
	for _, e := range entries {
		keep = max(keep, p.of(e.Name.Tenant).Keep)
	}
	if keep == 0 { // it has none, or none are to be kept any more
		return w.cfg.Keep
	}
	return keep
}

// put is the change that writes a record, which is kept for a time after the newest that it tells of.
func (w *Writer) put(collection, key string, body []byte, newest time.Time, keep time.Duration) store.RecordChange {
	c := w.change(collection, key)
	c.Body, c.ExpiresAt = body, newest.Add(keep).Truncate(time.Millisecond)
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
