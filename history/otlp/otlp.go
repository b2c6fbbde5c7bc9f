// Package otlp sends entries of history to a collector, as logs of OpenTelemetry by HTTP, for operators who keep more
// than the store does. It never delays the recording of entries: those that can't be sent in time are dropped and
// counted.
package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/carillon-scheduler/carillon/history"
)

// Bounds of the queue and of one request.
const (
	gatherTime  = time.Second // the longest wait of an entry for others of the same request
	longestWait = 32_768      // entries that wait; more are dropped
	mostAtOnce  = 1024        // entries in one request

	sendTimeout  = 10 * time.Second
	closeTimeout = 3 * time.Second
	longestPause = 30 * time.Second // between two tries
	tellInterval = time.Minute      // at least this lies between two failures in the log
	mostAnswer   = 64 << 10         // bytes of an answer that are read
)

// path is the path at which collectors accept logs.
const path = "/v1/logs"

// Config configures a Sink.
type Config struct {
	// URL is the collector's, see [CheckURL]; empty for no sink.
	URL string
	// Headers are sent with each request.
	Headers map[string]string
	// Version and Instance describe this process to the collector.
	Version, Instance string
	// Logger logs failures, at most once a minute. Nil logs nothing.
	Logger *slog.Logger
	// Registerer registers the metrics. Nil means none.
	Registerer prometheus.Registerer
}

// CheckURL parses a collector's URL, or returns its fault. The default path is /v1/logs.
func CheckURL(text string) (*url.URL, error) {
	to, err := url.Parse(text)
	if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
		return nil, errors.New("must be the URL of a collector, such as http://collector:4318")
	}
	if to.User != nil {
		return nil, errors.New("must have no user and password; headers are set by OTEL_EXPORTER_OTLP_HEADERS")
	}
	if strings.Trim(to.Path, "/") == "" {
		to.Path = path
	}
	return to, nil
}

// ParseHeaders reads headers in the form of OTEL_EXPORTER_OTLP_HEADERS: name=value, with commas between them, and with
// values percent-encoded.
func ParseHeaders(text string) (map[string]string, error) {
	headers := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil {
			return nil, errors.New("must be name=value, with commas between them and values percent-encoded")
		}
		headers[name] = decoded
	}
	return headers, nil
}

// Sink sends entries. A nil Sink sends nothing.
type Sink struct {
	cfg     Config
	to      string
	client  *http.Client
	metrics metrics

	lock    sync.Mutex
	waiting []*history.Entry
	ended   bool

	wake     chan struct{} // signals that entries wait, or that the sink was closed
	done     chan struct{} // closed when the loop has ended
	stop     context.CancelFunc
	loggedAt time.Time // when a failure was last logged
}

type metrics struct {
	sent, dropped prometheus.Counter
}

// New makes a sink and has it work until it is closed. It connects to nothing yet. Without a URL it makes none. The
// metrics are registered in any case. The error is that of the URL.
func New(cfg Config) (*Sink, error) {
	m := metrics{
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_history_sink_sent_total", Help: "Entries of history that the collector has taken.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "carillon_history_sink_dropped_total",
			Help: "Entries of history that were not sent since the collector was slow, away or refused them.",
		}),
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(m.sent, m.dropped)
	}
	if cfg.URL == "" {
		return nil, nil
	}
	to, err := CheckURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Sink{
		cfg: cfg, to: to.String(), wake: make(chan struct{}, 1), done: make(chan struct{}), stop: stop,
		// Credentials must not follow a redirection to another host.
		client:  &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		metrics: m,
	}
	go s.loop(ctx)
	return s, nil
}

// Record takes entries to be sent soon. It does not block; those that can't be held are counted. The entries must not
// be changed any more. It is safe for concurrent use.
func (s *Sink) Record(entries ...*history.Entry) {
	if s == nil || len(entries) == 0 {
		return
	}
	s.lock.Lock()
	taken := min(len(entries), longestWait-len(s.waiting))
	if s.ended {
		taken = 0
	}
	s.waiting = append(s.waiting, entries[:taken]...)
	s.lock.Unlock()
	s.metrics.dropped.Add(float64(len(entries) - taken))
	s.signal()
}

func (s *Sink) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // it will see this too
	}
}

// Close sends the queued entries. It gives up after 3 s; entries that are not sent are counted as dropped. It may be
// called more than once.
func (s *Sink) Close() error {
	if s == nil {
		return nil
	}
	s.lock.Lock()
	s.ended = true
	s.lock.Unlock()
	s.signal()
	timeout := time.AfterFunc(closeTimeout, s.stop)
	defer timeout.Stop()
	<-s.done
	return nil
}

// loop sends the queued entries in batches.
func (s *Sink) loop(ctx context.Context) {
	defer close(s.done)
	defer s.stop()
	defer s.client.CloseIdleConnections()
	for {
		s.gather()
		for {
			some, ended := s.take()
			if len(some) == 0 {
				if ended {
					return
				}
				break
			}
			s.send(ctx, some)
		}
	}
}

// gather waits until something is to be sent, or the sink was closed.
func (s *Sink) gather() {
	var over <-chan time.Time
	for {
		s.lock.Lock()
		waiting, ended := len(s.waiting), s.ended
		s.lock.Unlock()
		if ended || waiting >= mostAtOnce {
			return
		}
		if waiting > 0 && over == nil {
			timer := time.NewTimer(gatherTime)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-s.wake:
		case <-over:
			return
		}
	}
}

// take removes the entries of one request from the queue, and reports whether the sink was closed.
func (s *Sink) take() (some []*history.Entry, ended bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	n := min(len(s.waiting), mostAtOnce)
	some, s.waiting = s.waiting[:n:n], s.waiting[n:]
	return some, s.ended
}

// send sends entries, and retries temporary failures. Meanwhile others wait, and are dropped beyond the bound.
func (s *Sink) send(ctx context.Context, entries []*history.Entry) {
	body, err := s.encode(entries)
	for failures := 0; err == nil; failures++ {
		var refused int
		var pause time.Duration
		if refused, pause, err = s.post(ctx, body); err == nil {
			refused = min(refused, len(entries))
			s.metrics.sent.Add(float64(len(entries) - refused))
			s.metrics.dropped.Add(float64(refused))
			return
		}
		if pause < 0 {
			break
		}
		s.tell("history can't be sent to the sink yet; when too much of it waits, it is dropped", err)
		err = nil
		backOff := time.Duration(failures+1) * time.Second
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(min(max(pause, backOff), longestPause)):
		}
	}
	s.metrics.dropped.Add(float64(len(entries)))
	s.tell("a part of the history was not sent to the sink", err)
}

// tell logs a failure, at most once in tellInterval.
func (s *Sink) tell(text string, err error) {
	if now := time.Now(); now.Sub(s.loggedAt) >= tellInterval {
		s.loggedAt = now
		s.cfg.Logger.Warn(text, "error", err)
	}
}

// encode makes the body of a request.
func (s *Sink) encode(entries []*history.Entry) ([]byte, error) {
	records := make([]*logspb.LogRecord, len(entries))
	now := uint64(time.Now().UnixNano()) //nolint:gosec // after 1970
	for i, e := range entries {
		records[i] = recordOf(e, now)
	}
	plain, err := proto.Marshal(&logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{{
		Resource:  s.resource(),
		ScopeLogs: []*logspb.ScopeLogs{{Scope: scope, LogRecords: records}},
	}}})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	z, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return body.Bytes(), nil
}

// post makes one request. It returns how many entries the collector refused, or an error and the pause that the
// collector asks for before the next try; a negative one if there is to be none.
func (s *Sink) post(ctx context.Context, body []byte) (refused int, pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.to, bytes.NewReader(body))
	if err != nil {
		return 0, -1, err
	}
	for name, value := range s.cfg.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("Content-Encoding", "gzip")
	answer, err := s.client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, mostAnswer)) // a truncated text is of no use
	switch answer.StatusCode {
	case http.StatusOK:
		return refusedIn(text), 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return 0, time.Duration(min(max(0, seconds), 3600)) * time.Second, fmt.Errorf("it answers %s", answer.Status)
	default:
		return 0, -1, fmt.Errorf("it answers %s", answer.Status)
	}
}
