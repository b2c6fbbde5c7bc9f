package dispatcher_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// BenchmarkFire measures the cost of one firing, without the store's and the receiver's part.
func BenchmarkFire(b *testing.B) {
	provider := sdktrace.NewTracerProvider() // exports nothing
	for name, change := range map[string]func(*dispatcher.Config){
		"untraced": func(*dispatcher.Config) {},
		"traced":   func(c *dispatcher.Config) { c.Traces = provider },
		"measured": func(c *dispatcher.Config) { c.Registerer = prometheus.NewRegistry() },
	} {
		b.Run(name, func(b *testing.B) {
			q := &endless{left: b.N, done: make(chan struct{})}
			cfg := dispatcher.Defaults
			cfg.Store, cfg.Callbacks, cfg.Tick = q, callbacks.NewRegistry(taker{}), time.Hour
			change(&cfg)
			d, err := dispatcher.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			b.ReportAllocs()
			b.ResetTimer()
			go func() { ended <- d.Run(ctx) }()
			<-q.done
			b.StopTimer()
			stop()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkScan measures the first due scan of a replica when 100,000 tenants have something due soon, and counts the
// lanes that the store is asked to count.
func BenchmarkScan(b *testing.B) {
	for name, auto := range map[string]dispatcher.AutoPriority{
		"plain": {}, "auto": {New: time.Hour, Small: 1000},
	} {
		b.Run(name, func(b *testing.B) {
			var counted int
			for b.Loop() {
				q := &crowded{endless: &endless{left: 1}, at: time.Now().Add(30 * time.Second), scanned: make(chan struct{})}
				for i := range 100_000 {
					lane := job.Lane{Tenant: fmt.Sprint("tenant ", i)}
					q.lanes = append(q.lanes, store.LaneDue{Lane: lane, DueAt: q.at.Add(time.Duration(i))})
				}
				cfg := dispatcher.Defaults
				cfg.Store, cfg.Callbacks, cfg.Auto = q, callbacks.NewRegistry(taker{}), auto
				cfg.Tick = time.Minute // a scan reaches two poll intervals ahead
				d, err := dispatcher.New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				go func() { ended <- d.Run(ctx) }()
				<-q.scanned
				stop()
				if err := <-ended; err != nil {
					b.Error(err)
				}
				counted += q.counted
			}
			b.ReportMetric(float64(counted)/float64(b.N), "lanes-counted/op")
		})
	}
}

// crowded is a queue of many tenants, each with one occurrence that becomes due soon.
type crowded struct {
	*endless
	at      time.Time
	lanes   []store.LaneDue
	counted int // owned by the scan's goroutine
	scanned chan struct{}
}

func (q *crowded) DueLanes(_ context.Context, p store.DueParams) (store.DuePage, error) {
	first := 0
	if !p.After.DueAt.IsZero() {
		first = int(p.After.DueAt.Sub(q.at)) + 1
	}
	end := min(first+p.Limit, len(q.lanes))
	page := store.DuePage{Lanes: q.lanes[first:end]}
	if end < len(q.lanes) {
		page.Next = q.lanes[end-1]
	} else {
		close(q.scanned)
	}
	return page, nil
}

func (*crowded) Records(_ context.Context, f store.RecordFilter) (all []store.Record, err error) {
	for _, name := range f.Keys {
		all = append(all, store.Record{Key: name, Version: "v", Body: []byte(`{"firstSeen":0}`)})
	}
	return all, nil
}

func (q *crowded) Count(_ context.Context, _ time.Time, lanes []job.Lane, _ int) ([]store.Count, error) {
	q.counted += len(lanes)
	return make([]store.Count, len(lanes)), nil
}

// endless is a queue in which something is always due, until a number of occurrences were settled.
type endless struct {
	dispatcher.Store
	claimed, left int // owned by the claim loop and the settler
	done          chan struct{}
}

func (q *endless) DueLanes(context.Context, store.DueParams) (store.DuePage, error) {
	return store.DuePage{Lanes: []store.LaneDue{{Lane: job.DefaultLane, DueAt: time.Now()}}}, nil
}

func (q *endless) Claim(_ context.Context, p store.ClaimParams) (store.Claim, error) {
	n := 0
	claim := store.Claim{Quotas: make([]store.QuotaLeft, len(p.Quotas))}
	for i, q := range p.Quotas {
		n += q.Limit
		claim.Quotas[i] = store.QuotaLeft{Found: q.Limit, More: true}
	}
	claim.Occurrences = make([]store.Claimed, n)
	for i := range claim.Occurrences {
		c := &claim.Occurrences[i]
		c.Name, c.Timestamp, c.Attempt, c.Position = job.Name{Tenant: job.DefaultTenant, Key: "k"}, p.Now, 1, q.claimed
		c.Callback.Type, c.Options.Trace = "take", submission
		q.claimed++
	}
	return claim, nil
}

func (q *endless) Settle(_ context.Context, s []store.Settlement) error {
	before := q.left
	if q.left -= len(s); before > 0 && q.left <= 0 {
		close(q.done)
	}
	return nil
}

func (*endless) ClaimJobs(context.Context, store.ClaimJobsParams) (store.ClaimedJobs, error) {
	return store.ClaimedJobs{}, nil
}
func (*endless) Sweep(context.Context, store.SweepParams) (store.Swept, error) {
	return store.Swept{}, nil
}
func (*endless) Count(context.Context, time.Time, []job.Lane, int) ([]store.Count, error) {
	return make([]store.Count, 1), nil
}
func (*endless) Now(context.Context) (time.Time, error) { return time.Now(), nil }
func (*endless) Records(context.Context, store.RecordFilter) ([]store.Record, error) {
	return nil, nil
}

func (*endless) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	return make([]error, len(changes))
}

// taker is a sender whose receiver takes everything.
type taker struct{}

func (taker) Type() string                                   { return "take" }
func (taker) Validate([]byte) error                          { return nil }
func (taker) Destination([]byte) string                      { return "nobody" }
func (taker) Send(context.Context, callbacks.Delivery) error { return nil }
