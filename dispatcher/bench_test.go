package dispatcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// endless is a store that always has something due, which costs nothing to claim and settle. It has no other methods.
type endless struct {
	store.Queue
	target  job.Target
	left    atomic.Int64
	settled atomic.Int64
	done    chan struct{}
	want    int64
}

func (q *endless) Claim(_ context.Context, p store.ClaimParams) (store.Claim, error) {
	n := min(int64(p.Limit), q.left.Load())
	q.left.Add(-n)
	claim := store.Claim{More: q.left.Load() > 0, Occurrences: make([]store.Claimed, n)}
	token := job.NewToken()
	for i := range claim.Occurrences {
		c := &claim.Occurrences[i]
		c.Timestamp, c.DueAt, c.ScheduledAt = p.Now, p.Now.Add(p.Lease), p.Now
		c.Name = job.Name{Tenant: job.DefaultTenant, Key: "bench"}
		c.Attempt, c.Token, c.Target = 1, token, q.target
	}
	return claim, nil
}

func (q *endless) Settle(_ context.Context, settlements []store.Settlement) error {
	if q.settled.Add(int64(len(settlements))) == q.want {
		close(q.done)
	}
	return nil
}

func (q *endless) NextDue(context.Context) (time.Time, error) {
	if q.left.Load() > 0 {
		return time.Now(), nil
	}
	return time.Time{}, nil
}

func (q *endless) ClaimJobs(context.Context, store.ClaimJobsParams) (store.ClaimedJobs, error) {
	return store.ClaimedJobs{}, nil
}

func (q *endless) Now(context.Context) (time.Time, error)        { return time.Now(), nil }
func (q *endless) Beat(context.Context, string, time.Time) error { return nil }
func (q *endless) Sweep(context.Context, store.SweepParams) (store.Swept, error) {
	return store.Swept{}, nil
}

type nothing struct{}

func (nothing) Type() string                                   { return "nothing" }
func (nothing) Validate([]byte) error                          { return nil }
func (nothing) Send(context.Context, callbacks.Delivery) error { return nil }

// BenchmarkFire measures what the dispatcher itself costs for each occurrence, with a store and callbacks that cost nothing.
func BenchmarkFire(b *testing.B) {
	q := &endless{done: make(chan struct{}), want: int64(b.N)}
	q.target.Callback = job.Callback{Type: "nothing", Data: []byte(`{}`)}
	q.left.Store(int64(b.N))
	cfg := dispatcher.Defaults
	cfg.Store, cfg.Callbacks, cfg.Concurrency = q, callbacks.NewRegistry(nothing{}), 1024
	d, err := dispatcher.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-q.done
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
