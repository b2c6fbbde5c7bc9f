// Package audit writes the audit trail: a line of JSON for each requested change, and for each refused request. A line
// has the principal, the action, the address and the result, but never the data of a callback or a secret.
//
// Callers never wait: lines go through a bounded queue to one goroutine that writes them. Lines that do not fit or
// can't be written are counted, and the trail has the number of missing lines at that place.
package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
)

// Entry is one line. Empty fields are left out. Texts are cut to [MaxText] bytes.
type Entry struct {
	// Time is the time of the answer.
	Time time.Time `json:"time"`
	// RequestID is the X-Request-Id of the request and its answer.
	RequestID string `json:"requestId,omitzero"`
	// Principal is the id of the caller, see [github.com/carillon-scheduler/carillon/access.Principal]; empty if unknown.
	// For a command it is "command:" and the name of the system's user.
	Principal string `json:"principal,omitzero"`
	// From is the address of the connection's other end: the client or a proxy. For a command it is the machine's name.
	From string `json:"from,omitzero"`
	// Action is the request's method and its path, with the names of parameters in place of values; or the command.
	Action string `json:"action"`
	// Tenant is the request's tenant.
	Tenant string `json:"tenant,omitzero"`
	// Key is the job's key.
	Key string `json:"key,omitzero"`
	// Target is any other object in the path: a tenant, a dead letter, a key or a secret. For a command it is the key, or
	// the store.
	Target string `json:"target,omitzero"`
	// Query is the query, which selects the objects of a request about many.
	Query string `json:"query,omitzero"`
	// Status is the status of the answer, or of one item of a batch; 0 for a command.
	Status int `json:"status,omitzero"`
	// Result is the meaning of the status in one word.
	Result Result `json:"result"`
	// Version is the job's version after the change.
	Version string `json:"version,omitzero"`
	// Changed is the number of objects that a request about many has changed, and Failed the number of its items that were
	// refused or failed.
	Changed int `json:"changed,omitzero"`
	Failed  int `json:"failed,omitzero"`
	// Count is the number of refused requests that the line stands for; 0 for one. It has the other fields of the first of
	// them, and the time of the last.
	Count int `json:"count,omitzero"`
	// Missing is the number of lines that are missing before this one. Such a line has no other fields than Time, Action
	// and Result.
	Missing int `json:"missing,omitzero"`
}

// Result is the result of a request.
type Result string

// The results.
const (
	Done    Result = "done"
	Refused Result = "refused" // it changed nothing
	Failed  Result = "failed"  // by a fault of the service or its store; the change may have been made
	Broken  Result = "broken"  // the connection ended before the answer was complete; a part may have been done
)

// ResultOf returns the result of a status.
func ResultOf(status int) Result {
	switch {
	case status >= 500:
		return Failed
	case status >= 400:
		return Refused
	default:
		return Done
	}
}

// MaxText is the maximum size of a text in an entry, in bytes.
const MaxText = 512

const (
	// queueLength is the maximum number of entries in the queue: several seconds of a busy replica.
	queueLength = 8192
	// writeSize is the approximate size of one write, in bytes.
	writeSize = 64 << 10
	// closeTime is the maximum time that Close waits for the last lines.
	closeTime = 5 * time.Second
	// tellInterval is the minimum time between failures in the log.
	tellInterval = time.Minute
)

// Stdout is the target that stands for standard output.
const Stdout = "stdout"

// Log is an audit trail. A nil Log writes nothing. Its methods are safe for concurrent use.
type Log struct {
	queue   chan Entry
	to      io.Writer
	log     *slog.Logger
	metrics *metrics
	missing atomic.Int64 // lines lost since the last line about missing lines
	refused refusals
	stop    chan struct{}
	ended   chan struct{}
	once    sync.Once
}

// Open opens the trail that a target names: [Stdout], the path of a file, or, if it is empty, none, which is nil. A
// file is created if there is none, readable by its owner alone, and appended to. It is opened again when the path
// names another file or none, as after logrotate, so no signal is needed.
//
// The metrics are registered in any case.
func Open(target string, log *slog.Logger, registerer prometheus.Registerer) (*Log, error) {
	m := newMetrics(registerer)
	switch target {
	case "":
		return nil, nil //nolint:nilnil // a nil Log writes nothing
	case Stdout:
		// Else this signal would end the process when the reader of its output exits.
		signal.Ignore(syscall.SIGPIPE)
		return start(os.Stdout, log, m), nil
	}
	f := &file{path: target}
	if err := f.follow(); err != nil {
		return nil, err
	}
	return start(f, log, m), nil
}

// New starts a trail that is written to w, by one goroutine. W is closed with the trail if it is an [io.Closer].
func New(w io.Writer, log *slog.Logger, registerer prometheus.Registerer) *Log {
	return start(w, log, newMetrics(registerer))
}

func start(to io.Writer, log *slog.Logger, m *metrics) *Log {
	l := &Log{
		queue: make(chan Entry, queueLength), to: to, log: log, metrics: m,
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	go l.run()
	return l
}

// Write adds a line. It never blocks: a line without room is counted as missing. Refusals have room in half of the
// queue, since any client can cause them: the other half is for changes. Refusals of unknown callers that come within a
// second from one address have two lines: one for the first, and one with the number of the others.
func (l *Log) Write(e Entry) {
	if l == nil {
		return
	}
	e.clip()
	if !l.refused.counted(&e, l.add) {
		l.add(e)
	}
}

// add adds a line to the queue.
func (l *Log) add(e Entry) {
	if e.Result == Refused && len(l.queue) >= queueLength/2 {
		l.lose(1)
		return
	}
	select {
	case l.queue <- e:
	default:
		l.lose(1)
	}
}

// Close writes the waiting lines, for some seconds at most, and closes the trail. Later lines are lost.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.once.Do(func() {
		l.refused.flush(l.add)
		close(l.stop)
	})
	select {
	case <-l.ended:
	case <-time.After(closeTime):
		return fmt.Errorf("the last lines of the audit trail could not be written: %d or more are lost", len(l.queue))
	}
	if closer, ok := l.to.(io.Closer); ok && l.to != os.Stdout {
		return closer.Close()
	}
	return nil
}

func (l *Log) lose(lines int) {
	l.missing.Add(int64(lines))
	l.metrics.dropped.Add(float64(lines))
}

// run writes entries until the trail is closed.
func (l *Log) run() {
	defer close(l.ended)
	w := writer{Log: l}
	for {
		select {
		case e := <-l.queue:
			w.add(e)
			w.drain()
			w.flush()
		case <-l.stop:
			for len(l.queue) > 0 {
				w.drain()
				w.flush()
			}
			w.begin() // lines may be missing at the end
			w.flush()
			return
		}
	}
}

// writer is the state of the goroutine that writes.
type writer struct {
	*Log
	waiting  bytes.Buffer
	lines    int       // the number of waiting lines
	telling  int       // the number of missing lines in the first of them
	torn     bool      // the trail ends in the middle of a line
	loggedAt time.Time // the time of the last failure in the log
}

// drain adds the waiting entries, up to about the size of one write.
func (w *writer) drain() {
	for w.waiting.Len() < writeSize {
		select {
		case e := <-w.queue:
			w.add(e)
		default:
			return
		}
	}
}

// add encodes an entry. If lines are missing, a line with their number comes before the first entry of a write.
func (w *writer) add(e Entry) {
	if w.lines == 0 {
		w.begin()
	}
	w.encode(e)
}

func (w *writer) begin() {
	if w.torn {
		w.waiting.WriteByte('\n')
	}
	if w.telling = int(w.missing.Swap(0)); w.telling > 0 {
		w.encode(Entry{Time: time.Now().UTC(), Action: "audit", Result: Failed, Missing: w.telling})
	}
}

func (w *writer) encode(e Entry) {
	if err := json.MarshalWrite(&w.waiting, &e); err != nil {
		panic(err) // can't happen: all texts are valid
	}
	w.waiting.WriteByte('\n')
	w.lines++
}

// flush writes the added lines. Lines that can't be written are missing.
func (w *writer) flush() {
	if w.lines == 0 {
		return
	}
	all := w.waiting.Bytes()
	n, err := w.to.Write(all)
	n = max(0, min(n, len(all)))
	written := w.lines
	if err != nil || n < len(all) {
		written = bytes.Count(all[:n], []byte{'\n'})
		if w.torn && n > 0 { // the first one only ended the torn line
			written--
		}
		lost := w.lines - written
		if w.telling > 0 && written == 0 {
			w.missing.Add(int64(w.telling))
			lost-- // the line about missing lines will be made again
		}
		w.lose(lost)
		w.tell(cmp.Or(err, io.ErrShortWrite))
	}
	if n > 0 {
		w.torn = all[n-1] != '\n'
	}
	w.metrics.written.Add(float64(written))
	w.waiting.Reset()
	w.lines = 0
}

// tell logs a failure, at most once in tellInterval.
func (w *writer) tell(err error) {
	if now := time.Now(); w.loggedAt.IsZero() || now.Sub(w.loggedAt) >= tellInterval {
		w.loggedAt = now
		w.log.Error("the audit trail can't be written; its lines are lost, and counted in carillon_audit_lines_total",
			"error", err)
	}
}

// clip bounds the texts of an entry.
func (e *Entry) clip() {
	for _, text := range []*string{
		&e.RequestID, &e.Principal, &e.From, &e.Action, &e.Tenant, &e.Key, &e.Target, &e.Query, &e.Version,
	} {
		*text = clip(*text)
	}
}

// clip makes a text valid, and cuts it.
func clip(s string) string {
	if len(s) > MaxText {
		s = strings.Clone(s[:MaxText]) // so that the rest can be freed
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	return s
}

// file appends to the file that its path names now. It is used by one goroutine.
type file struct {
	path string
	open *os.File
	info os.FileInfo
}

// Write appends to the file that is at the path now.
func (f *file) Write(b []byte) (int, error) {
	if err := f.follow(); err != nil && f.open == nil {
		return 0, err
	}
	return f.open.Write(b) // to the previous file, if the new one can't be opened
}

// follow opens the file at the path, unless it is open.
func (f *file) follow() error {
	info, err := os.Stat(f.path)
	switch {
	case err == nil && f.open != nil && os.SameFile(info, f.info):
		return nil
	case err == nil && info.Mode()&os.ModeNamedPipe != 0:
		return fmt.Errorf("%s is a pipe, which may have no reader: write to standard output (%s), and pipe that",
			f.path, Stdout)
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a directory; name a file in it", f.path)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	opened, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if info, err = opened.Stat(); err != nil {
		return errors.Join(err, opened.Close())
	}
	if f.open != nil {
		_ = f.open.Close() // all writes to it are complete
	}
	f.open, f.info = opened, info
	return nil
}

// Close closes the file.
func (f *file) Close() error { return f.open.Close() }

// metrics count lines.
type metrics struct{ written, dropped prometheus.Counter }

func newMetrics(registerer prometheus.Registerer) *metrics {
	lines := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carillon_audit_lines_total",
		Help: "Lines of the audit trail, by result: written, or dropped because they could not be written.",
	}, []string{"result"})
	if registerer != nil {
		registerer.MustRegister(lines)
	}
	return &metrics{lines.WithLabelValues("written"), lines.WithLabelValues("dropped")}
}
