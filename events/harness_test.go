package events_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/openapi"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// The tests run whole dispatchers with their events on a real store, on the virtual clock of a synctest bubble.

const tenant = "acme"

// world is a store, its replicas, and their receivers.
type world struct {
	*testing.T
	store *brittle
	stops []func()

	lock   sync.Mutex
	answer map[string]error // by destination; jobs deliver to "jobs", and events to "events"
	takes  map[string]time.Duration
	sent   []callbacks.Delivery
}

// inWorld runs a test in a bubble, with a tenant that gets the events that the settings name.
func inWorld(t *testing.T, settings job.EventSettings, test func(w *world)) {
	t.Helper()
	specified() // not in the bubble
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, store: &brittle{Store: memory.New()}, answer: make(map[string]error)}
		settings.Callback = &job.CallbackDraft{Type: "test", Data: []byte(`"events"`)}
		if err := tenants.New(w.store).Set(t.Context(), tenant, job.TenantSettings{Events: &settings}, time.Now()); err != nil {
			t.Fatal(err)
		}
		test(w)
		w.stopAll()
	})
}

func (w *world) stopAll() {
	for _, stop := range w.stops {
		stop()
	}
	w.stops = nil
}

// replica is a dispatcher with its events.
type replica struct {
	*dispatcher.Dispatcher
	events  *events.Events
	metrics *prometheus.Registry
	stop    func()
}

// replica starts a replica on the world's store, or on another view of it.
func (w *world) replica(s *brittle) (r replica) {
	w.Helper()
	r.metrics = prometheus.NewRegistry()
	r.events = events.New(events.Config{
		Store: s, Registerer: r.metrics,
		Wake:      func(lane job.Lane, at time.Time) { r.Wake(lane, at) },
		DownSince: func(destination string) (time.Time, bool) { return r.DownSince(destination) }, //nolint:gocritic // r is set later
	})
	synctest.Wait() // it has read the settings
	cfg := dispatcher.Defaults
	cfg.Store, cfg.History = s, r.events
	cfg.Callbacks = callbacks.NewRegistry(w, r.events.Watcher())
	var err error
	if r.Dispatcher, err = dispatcher.New(cfg); err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx) // a replica that is killed loses outcomes
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		if err := r.events.Close(); err != nil {
			w.Error(err)
		}
	})
	w.stops = append(w.stops, r.stop)
	return r
}

// count reads a metric.
func (r *replica) count(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			var sum float64
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// submit puts a job with one instant, or with the schedule that change sets.
func (w *world) submit(key string, change func(*job.Job)) job.Job {
	w.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	j := job.Job{
		Name: job.Name{Tenant: tenant, Key: key}, Revision: job.NewRevision(now), CreatedAt: now, UpdatedAt: now,
		Callback: job.Callback{Type: "test", Data: []byte(`"jobs"`)}, ExpiresAt: now.Add(100 * 24 * time.Hour),
		Schedule: job.Schedule{Instants: []time.Time{now}},
	}
	j.Version = j.Revision
	j.Options.Retry = job.Retry{MaxAttempts: 2, Initial: job.Duration(time.Second), Factor: 1, Max: job.Duration(time.Second)}
	if change != nil {
		change(&j)
	}
	w.put(&j, now)
	return j
}

func (w *world) put(j *job.Job, now time.Time) {
	w.Helper()
	begun, err := j.Begin(now, job.PastFire, dispatcher.Defaults.Expansion())
	if err != nil {
		w.Fatal(err)
	}
	if result := w.store.Store.Put(w.Context(), []store.Put{{Job: *j, Occurrences: begun.Occurrences, Now: now}})[0]; result.Err != nil {
		w.Fatal(result.Err)
	}
}

// expect puts a job with an expectBy and its watch, as the API does.
func (w *world) expect(key string, by time.Duration, change func(*job.Job)) job.Job {
	w.Helper()
	j := w.submit(key, func(j *job.Job) {
		j.Options.ExpectBy = job.Duration(by)
		if change != nil {
			change(j)
		}
	})
	now := time.Now().UTC().Truncate(time.Millisecond)
	watch, some, err := events.Watch(&j, now)
	if !some || err != nil {
		w.Fatal("there is nothing to watch", err)
	}
	watch.Revision, watch.CreatedAt, watch.UpdatedAt, watch.ExpiresAt = job.NewRevision(now), now, now, j.ExpiresAt
	watch.Version = watch.Revision
	w.put(&watch, now)
	return j
}

func crontab(expression string) func(*job.Job) {
	return func(j *job.Job) {
		var err error
		if j.Schedule.Crontab, err = job.ParseCrontab(expression); err != nil {
			panic(err)
		}
		j.Schedule.Instants = nil
	}
}

func (w *world) answers(destination string, err error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.answer[destination] = err
}

// Type, Validate, Destination and Send make the world a sender.
func (w *world) Type() string          { return "test" }
func (w *world) Validate([]byte) error { return nil }
func (w *world) Destination(data []byte) string {
	destination, _ := w.Place(data)
	return destination
}

// Place divides "jobs#a" into the destination "jobs" and its part "a".
func (w *world) Place(data []byte) (destination, part string) {
	destination, part, _ = strings.Cut(strings.Trim(string(data), `"`), "#")
	return destination, part
}

func (w *world) Send(_ context.Context, d callbacks.Delivery) error {
	w.lock.Lock()
	takes := w.takes[strings.Trim(string(d.Data), `"`)]
	w.lock.Unlock()
	time.Sleep(takes)
	w.lock.Lock()
	defer w.lock.Unlock()
	err := w.answer[strings.Trim(string(d.Data), `"`)]
	if err == nil {
		w.sent = append(w.sent, d)
	}
	return err
}

// told returns the type and subject of each delivered event. Those with the same id count once, as for receivers.
func (w *world) told() (all []string) {
	w.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	known := make(map[job.ID]bool)
	for _, d := range w.sent {
		if d.Event == nil || known[d.ID] {
			continue
		}
		known[d.ID] = true
		var event any
		if err := json.Unmarshal(d.Message([]byte(`"the callback's own"`)).Body, &event); err != nil {
			w.Error(err)
		} else if err := specified().VisitJSON(event); err != nil {
			w.Errorf("it is not as specified: %v", err)
		}
		var data map[string]any
		if err := json.Unmarshal(d.Payload, &data); err != nil || data["tenant"] != tenant || d.Name.Tenant != tenant ||
			!job.Reserved(d.Name.Key) || d.Envelope != job.EnvelopeStructured {
			w.Errorf("event %+v: %v", d, err)
		}
		all = append(all, strings.TrimPrefix(string(d.Event.Type), "carillon.")+" "+d.Event.Subject)
	}
	slices.Sort(all)
	return all
}

// specified is the schema of events.
var specified = sync.OnceValue(func() *openapi3.Schema {
	spec, err := openapi3.NewLoader().LoadFromData(openapi.YAML)
	if err != nil {
		panic(err)
	}
	return spec.Webhooks["event"].Post.RequestBody.Value.Content["application/cloudevents+json"].Schema.Value
})

// data returns the content of the event of a type that was delivered last.
func (w *world) data(kind job.EventType) (d events.Data) {
	w.Helper()
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, sent := range slices.Backward(w.sent) {
		if sent.Event != nil && sent.Event.Type == kind {
			if err := json.Unmarshal(sent.Payload, &d); err != nil {
				w.Error(err)
			}
			return d
		}
	}
	w.Errorf("no %s was delivered", kind)
	return d
}

// hasTold checks the delivered events, in any order.
func (w *world) hasTold(want ...string) {
	w.Helper()
	slices.Sort(want)
	if got := w.told(); !slices.Equal(got, want) {
		w.Errorf("it has told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// brittle is a store that fails on demand.
type brittle struct {
	store.Store
	lock   sync.Mutex
	puts   error // of every Put
	settle error // of every Settle
}

func (b *brittle) set(puts, settle error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.puts, b.settle = puts, settle
}

func (b *brittle) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	b.lock.Lock()
	err := b.puts
	b.lock.Unlock()
	if err != nil {
		return slices.Repeat([]store.PutResult{{Err: err}}, len(puts))
	}
	return b.Store.Put(ctx, puts)
}

func (b *brittle) Settle(ctx context.Context, s []store.Settlement) error {
	b.lock.Lock()
	err := b.settle
	b.lock.Unlock()
	if err != nil {
		return err
	}
	return b.Store.Settle(ctx, s)
}

var (
	errHungUp = errors.New("it hung up")
	errGone   = callbacks.Permanent(errors.New("it is gone"))
	errAway   = fmt.Errorf("%w: it is away", store.ErrUnavailable)
)
