package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// world is a service in which situations are made: the API, and dispatchers as a test starts them.
type world struct {
	testing.TB
	keep     keeps
	store    store.Store
	handler  http.Handler
	receiver *receiver
	start    time.Time
	// callbackTimeout, tick, concurrency, deadRetain and failures configure the dispatchers that are started later.
	callbackTimeout time.Duration
	tick            time.Duration
	concurrency     int
	deadRetain      time.Duration
	failures        int

	dispatcher *dispatcher.Dispatcher // the last that was started; nil if none was
	history    *history.Writer
	stops      []func()
}

// keeps is which history a world keeps.
type keeps struct {
	nothing  bool
	failures bool
	// briefly keeps history and finished jobs for an hour only.
	briefly bool
}

// retain returns the retention of history and of finished jobs.
func (k keeps) retain() time.Duration {
	if k.briefly {
		return time.Hour
	}
	return 4 * time.Hour
}

// newWorld makes a world on a store.
func newWorld(t testing.TB, s store.Store, keep keeps) *world {
	t.Helper()
	w := &world{TB: t, keep: keep, store: s, receiver: &receiver{}, start: time.Now(), failures: 20, tick: 20 * time.Second}
	config := handlers.Config{
		Store: s, Inspector: s, Records: s,
		Callbacks: callbacks.NewRegistry(w.receiver),
		Wake: func(lane job.Lane, at time.Time) {
			if w.dispatcher != nil {
				w.dispatcher.Wake(lane, at)
			}
		},
		WakeExpander: func() {
			if w.dispatcher != nil {
				w.dispatcher.WakeExpander()
			}
		},
		Destinations: func() (all []handlers.DestinationState) {
			if w.dispatcher == nil {
				return nil
			}
			for _, d := range w.dispatcher.Destinations() {
				all = append(all, handlers.DestinationState{Name: d.Name, Failures: d.Failures, OpenSince: d.Open})
			}
			return all
		},
		Rate: func() float64 {
			if w.dispatcher == nil {
				return 0
			}
			return w.dispatcher.Rate()
		},
		Forecast:  handlers.Forecast{Policy: dispatcher.Defaults.Policy},
		Replicas:  func(ctx context.Context, now time.Time) (int, error) { return replicas.Count(ctx, s, now) },
		Auth:      people{},
		Limits:    job.Limits{Instants: 1000, Payload: 1000},
		MaxBody:   100_000,
		Expansion: dispatcher.Defaults.Expansion(),
		Retain:    keep.retain(),
		Logger:    slog.New(slog.DiscardHandler),
	}
	if !keep.nothing {
		config.HistoryPolicy = history.Policy{Keep: keep.retain(), Failures: keep.failures}
		w.history = history.NewWriter(history.Config{Records: s, Policy: config.HistoryPolicy, Reach: dispatcher.Defaults.Lease})
		config.History = w.history
	}
	w.handler = handlers.New(config)
	return w
}

// bubble makes a world on a virtual clock.
func bubble(t *testing.T, keep keeps, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.New(), keep)
		defer w.close()
		f(w)
	})
}

func (w *world) close() {
	for _, stop := range w.stops {
		stop()
	}
	_ = w.history.Close()
}

// replica starts a dispatcher, which ends with the world.
func (w *world) replica() {
	w.Helper()
	cfg := dispatcher.Defaults
	cfg.Store, cfg.Callbacks = w.store, callbacks.NewRegistry(w.receiver)
	cfg.Tick = w.tick
	cfg.Destinations.Failures, cfg.DeadLetterRetain, cfg.Retain = w.failures, w.deadRetain, w.keep.retain()
	if w.callbackTimeout != 0 {
		cfg.CallbackTimeout, cfg.Lease = w.callbackTimeout, w.callbackTimeout+time.Minute
	}
	if w.concurrency != 0 {
		cfg.Concurrency = w.concurrency
		cfg.Destinations.InFlight, cfg.Destinations.SlowInFlight = w.concurrency, w.concurrency
	}
	if w.history != nil {
		cfg.History = w.history
	}
	d, err := dispatcher.New(cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	w.dispatcher = d
	w.stops = append(w.stops, func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("run: %v", err)
		}
	})
}

// claim claims one occurrence, as a replica does that dies then.
func (w *world) claim() { w.claimOf(job.DefaultLane, time.Minute) }

func (w *world) claimOf(lane job.Lane, lease time.Duration) {
	w.Helper()
	_, err := w.store.Claim(w.Context(), store.ClaimParams{
		Now: time.Now().Truncate(time.Millisecond), Lease: lease, Quotas: []store.Quota{{Lane: lane, Limit: 1}},
	})
	if err != nil {
		w.Fatal(err)
	}
}

// people knows callers by tokens that are their ids. Those whose id is a tenant's name are that tenant's only.
type people struct{}

func (people) Authenticate(_ context.Context, token string, _ time.Time) (access.Principal, error) {
	p := access.Anyone()
	if p.ID = token; token == "acme" {
		p.Scope = access.Scope{Tenants: []string{"acme"}}
	}
	return p, nil
}

func (people) Knows(string, time.Time) bool { return true }

// do makes a request, and returns the body of its answer, which must be a success.
func (w *world) do(method, path, body string, headers ...string) []byte {
	w.Helper()
	status, answer := w.try(method, path, body, headers...)
	if status >= 300 {
		w.Fatalf("%s %s %s: %d %s", method, path, body, status, answer)
	}
	return answer
}

func (w *world) try(method, path, body string, headers ...string) (int, []byte) {
	w.Helper()
	request := httptest.NewRequestWithContext(w.Context(), method, path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer ada")
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, request)
	read, err := io.ReadAll(recorder.Result().Body)
	if err != nil {
		w.Fatal(err)
	}
	return recorder.Code, read
}

// put submits a job with some members besides the callback.
func (w *world) put(key, members string, headers ...string) {
	w.Helper()
	w.do("PUT", pathOf(key), fmt.Sprintf(`{"callback":{"type":"test","data":%q},%s}`, key, members), headers...)
}

func pathOf(key string) string { return "/v1/jobs/" + url.PathEscape(key) }

// after returns an instant some time after the world's start.
func (w *world) after(d time.Duration) string {
	return job.FormatTime(job.CeilMilli(w.start.Add(d)))
}

// at returns the schedule of one instant.
func (w *world) at(d time.Duration) string { return fmt.Sprintf(`"schedules":[%q]`, w.after(d)) }

// sleep lets time pass, until that much of it has passed since the world's start.
func (w *world) until(d time.Duration) { time.Sleep(time.Until(w.start.Add(d))) }

// answer is an explanation as clients read it.
type answer struct {
	Key, Tenant, At, FiresAt, Code, Summary, AsOf string
	Facts                                         []struct {
		Code, Text, At, Since, Until, Next, By, RequestID, Error, Destination, Replica string
		Attempt, Status, Count                                                         int
	}
	Occurrence *struct{ ID, DeliveryID, State, Subscriber string }
	Nearest    []string
}

// explain asks about an instant: "next", "last", or a time.
func (w *world) explain(key, at string, headers ...string) (a answer) {
	w.Helper()
	body := w.do("GET", pathOf(key)+"/explain?at="+url.QueryEscape(at), "", headers...)
	if err := json.Unmarshal(body, &a); err != nil {
		w.Fatalf("%v: %s", err, body)
	}
	return a
}

// codes lists the codes of an answer's facts.
func (a *answer) codes() string {
	var all []string
	for _, f := range a.Facts {
		all = append(all, f.Code)
	}
	return strings.Join(all, " ")
}

// text writes the sentences of an answer.
func (a *answer) text() string {
	var b strings.Builder
	fmt.Fprintln(&b, a.Summary)
	for _, f := range a.Facts {
		fmt.Fprintf(&b, "- %s: %s\n", f.Code, f.Text)
	}
	return b.String()
}

// receiver is a sender that answers as set.
type receiver struct {
	lock   sync.Mutex
	answer func(ctx context.Context, d callbacks.Delivery) error
}

func (*receiver) Type() string              { return "test" }
func (*receiver) Validate([]byte) error     { return nil }
func (*receiver) Destination([]byte) string { return "receiver" }

func (r *receiver) Send(ctx context.Context, d callbacks.Delivery) error {
	r.lock.Lock()
	answer := r.answer
	r.lock.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, d)
}

// answers sets the receiver's answers from now on.
func (w *world) answers(answer func(ctx context.Context, d callbacks.Delivery) error) {
	w.receiver.lock.Lock()
	defer w.receiver.lock.Unlock()
	w.receiver.answer = answer
}

// refuses has the receiver refuse with a status, and ask for a pause.
func (w *world) refuses(status int, pause time.Duration) {
	w.answers(func(context.Context, callbacks.Delivery) error { return callbacks.RetryAfter(refusal(status), pause) })
}

// hangs has the receiver take some time for each delivery.
func (w *world) hangs(d time.Duration) {
	w.answers(func(ctx context.Context, _ callbacks.Delivery) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	})
}

// refusal is an answer with a status.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("it answered %d", int(r)) }
func (r refusal) Status() int   { return int(r) }

var errHungUp = errors.New("the receiver hung up")
