// Package intake takes submissions from the messages of brokers. A [Door] turns each message into a request, and passes
// it to the API in this process. So messages and HTTP requests lead through the same code, with the same checks,
// limits, quotas and audit trail. The packages below this one read the messages of one kind of broker each.
package intake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/handlers"
)

// The bounds of a group of messages that a source takes at once. More would take longer than a change may take to take
// effect, on a slow store.
const (
	// GroupMessages is the maximum number of messages.
	GroupMessages = 4000
	// GroupBytes is the size of the bodies beyond which no further message is added.
	GroupBytes = 8 << 20
)

// Config configures a [Door].
type Config struct {
	// API is the handler of the whole API.
	API http.Handler
	// Source names the queue or topic, as in "queue jobs". It is the principal in the audit trail and in history.
	Source string
	// Address is the source of the messages, for the audit trail.
	Address string
	// Tenant is the tenant of all its jobs.
	Tenant string
	// Patience is the time that the messages under way have when the service stops.
	Patience time.Duration
	// Metrics are shared by all doors.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Door applies the messages of one queue or topic. Its methods are not for concurrent use, except [Door.Problem].
type Door struct {
	Config
	principal access.Principal
	measured  measured

	mu      sync.Mutex
	problem string // the reason that nothing is consumed; empty while messages are
}

// NewDoor makes a door.
func NewDoor(c Config) *Door {
	return &Door{
		Config:   c,
		measured: c.Metrics.of(c.Source),
		problem:  "not connected yet",
		principal: access.Principal{
			ID: c.Source, Role: access.Operator, Scope: access.Scope{Tenants: []string{c.Tenant}},
		},
	}
}

// Consuming notes that messages are consumed, or the reason that they are not.
func (d *Door) Consuming(err error) {
	text, up := "", 1.0
	if err != nil {
		text, up = err.Error(), 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problem = text
	d.measured.consuming.Set(up)
}

// Problem returns the reason that no messages are consumed; empty while they are.
func (d *Door) Problem() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.problem
}

// Answer is the outcome of a message.
type Answer struct {
	// Refused is the reason that the message can't be applied; nil if it was.
	Refused *Problem
}

// A refusal of the service for the time being is tried again after a pause, which doubles.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
	// mostFaults is the number of tries of a message at which the service fails. Other messages must get their turn.
	mostFaults = 5
)

// Apply applies messages in their order, and returns the answers of those that are done: applied, or refused for good.
// While the store is unavailable or a limit has no room, it waits and tries again; a message whose outcome is unknown
// is repeated with those behind it. The error is that of hold, or the end of ctx; the other messages are not done then.
//
// Hold returns nil if the broker still regards the messages as this consumer's, at a time after the call. It is called
// before each try: a process that stood still for a while must not override the changes of another consumer.
func (d *Door) Apply(ctx context.Context, hold func(context.Context) error, messages []Message) ([]Answer, error) {
	// When ctx ends, calls under way get d.Patience to finish.
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.Patience, cancel) })()

	requests := make([]asked, len(messages))
	for i := range messages {
		requests[i].request, requests[i].refused = messages[i].read(d.Tenant)
	}
	answers := make([]Answer, 0, len(messages))
	pause, faults := firstPause, 0
	for {
		now := time.Now()
		if err := hold(patient); err != nil {
			return answers, err
		}
		done, wait := d.try(patient, now, requests[len(answers):])
		for _, a := range done {
			d.measured.count(a)
		}
		answers = append(answers, done...)
		if len(done) > 0 {
			pause, faults = firstPause, 0
		}
		if len(answers) == len(messages) {
			return answers, nil
		}
		if wait != nil {
			if faults++; wait.fault != nil && faults >= mostFaults {
				answer := Answer{Refused: wait.fault}
				d.measured.count(answer)
				answers, faults = append(answers, answer), 0
				continue
			}
			d.measured.retries.Inc()
			for i := len(answers); i < len(requests); i++ { // they may have been stored all the same
				requests[i].repeat()
			}
			if err := Sleep(ctx, max(wait.after, pause/2+rand.N(pause/2))); err != nil {
				return answers, err
			}
			pause = min(2*pause, lastPause)
		}
		if ctx.Err() != nil {
			return answers, ctx.Err()
		}
	}
}

// asked is a message's request, or the reason that it has none.
type asked struct {
	*request
	refused *Problem
	// done is the answer of a request that was made beside an earlier one, which has to wait. It is not made again.
	done *Answer
}

func (a *asked) repeat() {
	if a.request != nil {
		a.from.repeated = true
	}
}

// wait is the reason to try again later.
type wait struct {
	after time.Duration // the least pause that the service asks for
	fault *Problem      // set if the service failed, rather than being unavailable
}

// try makes the first requests of a list: those that can be a batch, or else those for distinct keys. It returns the
// answers of those that are done, in order. Wait is set if the next one has to wait.
func (d *Door) try(ctx context.Context, now time.Time, all []asked) (done []Answer, later *wait) {
	if all[0].refused != nil {
		return []Answer{{Refused: all[0].refused}}, nil
	}
	n := 1
	if all[0].batched() {
		for n < len(all) && all[n].refused == nil && all[n].batched() {
			n++
		}
		return d.batch(ctx, now, all[:n])
	}
	const atOnce = 16
	keys := map[string]bool{all[0].key: true}
	for n < min(len(all), atOnce) && all[n].refused == nil && !all[n].batched() && !keys[all[n].key] {
		keys[all[n].key] = true
		n++
	}
	responses := make([]*response, n)
	var running sync.WaitGroup
	for i := range n {
		if all[i].done == nil {
			running.Go(func() { responses[i] = d.single(ctx, now, all[i].request) })
		}
	}
	running.Wait()
	for i, r := range responses {
		if all[i].done == nil {
			a, wait := verdict(all[i].operation, r.status, r.header, r.problem)
			if wait == nil {
				all[i].done = &a
			} else if later == nil {
				later = wait
			}
		}
		if later == nil {
			done = append(done, *all[i].done)
		}
	}
	return done, later
}

// verdict returns the answer to a message from the status of its request, or the necessary wait.
func verdict(operation string, status int, header http.Header, problem func() *Problem) (Answer, *wait) {
	switch {
	case status < http.StatusMultipleChoices:
		return Answer{}, nil
	case status == http.StatusNotFound && operation == "cancel":
		return Answer{}, nil // the job is gone, as requested
	case status == http.StatusConflict && operation != "check-in":
		return Answer{}, nil // as if the message had been applied just before the later request that has changed the job
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests,
		status == http.StatusRequestTimeout:
		seconds, _ := strconv.Atoi(header.Get("Retry-After"))
		if status != http.StatusTooManyRequests {
			seconds = 0 // our own pauses begin shorter
		}
		return Answer{}, &wait{after: time.Duration(seconds) * time.Second}
	case status >= http.StatusInternalServerError:
		return Answer{}, &wait{fault: problem()}
	default:
		return Answer{Refused: problem()}, nil
	}
}

// single makes a request for one job.
func (d *Door) single(ctx context.Context, now time.Time, r *request) *response {
	var body []byte
	if operations[r.operation].body {
		body = r.body
	}
	from := &handlers.Inside{Principal: d.principal, Asked: now, Items: []handlers.InsideItem{d.item(r)}}
	header := http.Header{"Content-Type": {"application/json"}}
	if t := r.from.trace; t != "" {
		header.Set("Traceparent", t.Parent())
		if state := t.State(); state != "" {
			header.Set("Tracestate", state)
		}
	}
	return d.request(ctx, from, operations[r.operation].method, r.path(), header, body)
}

// item returns the origin of a request.
func (d *Door) item(r *request) handlers.InsideItem {
	return handlers.InsideItem{
		Repeated: r.from.repeated, Published: r.from.published, Identity: d.identity(r), Trace: r.from.trace,
	}
}

// identity returns the identity of a message among those of all sources; empty if it has none.
func (d *Door) identity(r *request) string {
	if r.from.identity == "" {
		return ""
	}
	return d.Source + " " + r.from.identity
}

// batch makes one request of several puts.
func (d *Door) batch(ctx context.Context, now time.Time, all []asked) (done []Answer, later *wait) {
	from := &handlers.Inside{Principal: d.principal, Asked: now, Items: make([]handlers.InsideItem, len(all))}
	size := 0
	for i := range all {
		size += len(all[i].body) + 1
	}
	lines := make([]byte, 0, size)
	for i := range all {
		from.Items[i] = d.item(all[i].request)
		lines = appendLine(lines, all[i].body)
	}
	header := http.Header{"Content-Type": {"application/x-ndjson"}}
	r := d.request(ctx, from, http.MethodPost, "/v1/jobs/batch", header, lines)
	if r.status != http.StatusOK {
		_, later := verdict(put, r.status, r.header, r.problem)
		if later == nil { // can't be: the request is right
			later = &wait{fault: r.problem()}
		}
		return nil, later
	}
	for line := range bytes.Lines(r.body.Bytes()) {
		var result batchResult
		if err := json.Unmarshal(line, &result); err != nil || result.Index != len(done) || len(done) == len(all) {
			break // the answer was broken off: the rest is tried again
		}
		a, later := verdict(put, result.Status, r.header, result.problem)
		if later != nil {
			return done, later
		}
		done = append(done, a)
	}
	if len(done) == 0 { // so that the loop is not busy
		return nil, &wait{}
	}
	return done, nil
}

// batchResult is a line of the answer to a batch.
type batchResult struct {
	Index  int            `json:"index"`
	Status int            `json:"status"`
	Title  string         `json:"title"`
	Detail string         `json:"detail"`
	Errors jsontext.Value `json:"errors"`
	Quota  jsontext.Value `json:"quota"`
}

func (r *batchResult) problem() *Problem {
	return &Problem{
		Type: "about:blank", Title: r.Title, Status: r.Status, Detail: r.Detail, Errors: r.Errors, Quota: r.Quota,
	}
}

// appendLine appends a document as one line. A line's end within a document is white space, or the document is
// malformed; it stays so with tabs.
func appendLine(lines, document []byte) []byte {
	start := len(lines)
	lines = append(lines, document...)
	for i := start; i < len(lines); i++ {
		if lines[i] == '\n' || lines[i] == '\r' {
			lines[i] = '\t'
		}
	}
	return append(lines, '\n')
}

// request makes a request to the API in this process. A panic of the API is an answer with status 500.
func (d *Door) request(
	ctx context.Context, from *handlers.Inside, method, path string, header http.Header, body []byte,
) (answer *response) {
	answer = &response{header: make(http.Header), status: http.StatusOK}
	r, err := http.NewRequestWithContext(handlers.FromInside(ctx, from), method, path, io.NopCloser(bytes.NewReader(body)))
	if err != nil { // can't be: the path is escaped
		answer.status = http.StatusInternalServerError
		return answer
	}
	r.Header, r.RemoteAddr, r.ContentLength = header, d.Address, int64(len(body))
	defer func() {
		if fault := recover(); fault != nil && fault != any(http.ErrAbortHandler) {
			d.Logger.Error("panic", "source", d.Source, "panic", fault)
			answer.status = http.StatusInternalServerError
		}
	}()
	d.API.ServeHTTP(answer, r)
	return answer
}

// response is an answer in memory.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *response) WriteHeader(status int) { r.status = status }

// Write implements [http.ResponseWriter].
func (r *response) Write(b []byte) (int, error) { return r.body.Write(b) }

// Flush implements [http.Flusher].
func (r *response) Flush() {}

// problem returns the problem document of an answer.
func (r *response) problem() *Problem {
	var p Problem
	if err := json.Unmarshal(r.body.Bytes(), &p); err != nil {
		return newProblem(r.status, "the service has failed; its log has the cause")
	}
	return &p
}

// Sleep waits, or returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Source consumes one queue or topic.
type Source interface {
	// Run consumes until ctx ends. It connects again whenever the connection is lost. When ctx ends, messages under way
	// have the patience of the door.
	Run(ctx context.Context)
}

// Again calls serve until ctx ends, with pauses that grow while it fails soon. It passes the error to the door, and
// logs the first one of an outage.
func (d *Door) Again(ctx context.Context, serve func(context.Context) error) {
	const longest = 10 * time.Second
	pause, down := 100*time.Millisecond, false
	for ctx.Err() == nil {
		began := time.Now()
		err := serve(ctx)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the connection is closed")
		}
		if time.Since(began) > longest {
			pause, down = 100*time.Millisecond, false
		}
		if !down {
			down = true
			d.Logger.Warn("submissions wait in the broker", "source", d.Source, "error", err)
		}
		d.Consuming(err)
		_ = Sleep(ctx, pause/2+rand.N(pause/2)) // the loop ends with ctx
		pause = min(2*pause, longest)
	}
	d.Consuming(errors.New("stopped"))
}
