package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// BenchmarkFire measures what one firing costs beside its store and its receiver, neither of which does anything.
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

// endless is a queue in which something is due until so many were settled.
type endless struct {
	dispatcher.Store
	claimed, left int // the one is the claim loop's, the other the settler's
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
func (*endless) Backlog(context.Context, time.Time) (store.Backlog, error) {
	return store.Backlog{}, nil
}
func (*endless) Now(context.Context) (time.Time, error) { return time.Now(), nil }
func (*endless) Records(context.Context, store.RecordFilter) ([]store.Record, error) {
	return nil, nil
}

func (*endless) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	return make([]error, len(changes))
}

// taker is a sender that takes all.
type taker struct{}

func (taker) Type() string                                   { return "take" }
func (taker) Validate([]byte) error                          { return nil }
func (taker) Destination([]byte) string                      { return "nobody" }
func (taker) Send(context.Context, callbacks.Delivery) error { return nil }
