package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverSchema is the schema of River's tables in this bench.
const riverSchema = "carillon_bench_river"

// riverWorkers is MaxWorkers, which has no default; River's own bench has the same.
const riverWorkers = 2000

// riverPeer is River with its driver for pgx.
type riverPeer struct {
	settings string
	pool     *pgxpool.Pool
	counter  *queryCounter
	client   *river.Client[pgx.Tx]
	done     atomic.Int64
}

func newRiver(ctx context.Context, rawURL, settings string) (*riverPeer, error) {
	r := &riverPeer{settings: settings, counter: &queryCounter{}}
	var err error
	// More than it uses concurrently: one connection listens, and others fetch, complete and maintain.
	r.pool, err = openPool(ctx, rawURL, 20, r.counter)
	return r, err
}

// riverArgs is a job's payload, unchanged.
type riverArgs struct{ payload json.RawMessage }

func (riverArgs) Kind() string                   { return "carillon-bench" }
func (a riverArgs) MarshalJSON() ([]byte, error) { return a.payload, nil }
func (a *riverArgs) UnmarshalJSON(b []byte) error {
	a.payload = append(a.payload[:0], b...)
	return nil
}

// config returns the bench's settings, and a description of them.
func (r *riverPeer) config() (c river.Config, how string) {
	how = fmt.Sprintf("MaxWorkers %d", riverWorkers)
	switch r.settings {
	case throughput:
		c.FetchCooldown, c.FetchPollInterval = 2*time.Millisecond, 20*time.Millisecond
		how += ", FetchCooldown 2 ms, FetchPollInterval 20 ms, as in River's own bench"
	case tuned:
		c.FetchCooldown, c.FetchPollInterval = river.FetchCooldownMin, river.FetchPollIntervalMin
		how += ", FetchCooldown and FetchPollInterval 1 ms, the least it takes (it adds up to 10 ms to the latter)"
	default:
		how += ", else defaults: FetchCooldown 100 ms, FetchPollInterval 1 s"
	}
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c.Schema = riverSchema
	return c, how + ". Completed jobs are kept for a day, as by default."
}

func (r *riverPeer) about(ctx context.Context) (about, error) {
	server, err := versionOfPostgres(ctx, r.pool)
	_, how := r.config()
	return about{"River " + moduleVersion("github.com/riverqueue/river"), "postgres", server, how}, err
}

func (r *riverPeer) prepare(ctx context.Context, force bool) error {
	if err := newSchema(ctx, r.pool, riverSchema, force); err != nil {
		return err
	}
	c, _ := r.config()
	m, err := rivermigrate.New(riverpgxv5.New(r.pool), &rivermigrate.Config{Schema: riverSchema, Logger: c.Logger})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func (r *riverPeer) insert(ctx context.Context, w *work) error {
	c, _ := r.config()
	client, err := river.NewClient(riverpgxv5.New(r.pool), &c)
	if err != nil {
		return err
	}
	const batch = 5000 // as in River's own bench
	for from := 0; from < w.count; from += batch {
		var params []river.InsertManyParams
		for i := from; i < min(from+batch, w.count); i++ {
			params = append(params, river.InsertManyParams{
				Args: riverArgs{w.data(i)}, InsertOpts: &river.InsertOpts{ScheduledAt: w.instant(i)}})
		}
		if _, err := client.InsertManyFast(ctx, params); err != nil {
			return err
		}
	}
	// The server would analyze the table by itself within a minute, and a table in use has been analyzed.
	_, err = r.pool.Exec(ctx, `ANALYZE `+riverSchema+`.river_job`)
	return err
}

// riverWorker works one kind of job.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func(payload []byte)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.handle(job.Args.payload)
	return nil
}

func (r *riverPeer) start(ctx context.Context, handle func(payload []byte)) error {
	c, _ := r.config()
	c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}}
	c.Workers = river.NewWorkers()
	river.AddWorker(c.Workers, &riverWorker{handle: handle})
	client, err := river.NewClient(riverpgxv5.New(r.pool), &c)
	if err != nil {
		return err
	}
	r.client = client
	// An event arrives once the job's completion is committed. Events are dropped if the channel is full.
	events, _ := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: 100_000,
		Kinds: []river.EventKind{river.EventKindJobCompleted}})
	go func() {
		for range events { // until the client has stopped
			r.done.Add(1)
		}
	}()
	return client.Start(ctx)
}

func (r *riverPeer) settled(context.Context) (int, error) { return int(r.done.Load()), nil }

func (r *riverPeer) queries() int64 { return r.counter.sum.Load() }

func (r *riverPeer) stop(ctx context.Context) error {
	if r.client == nil {
		return nil
	}
	client := r.client
	r.client = nil
	return client.Stop(ctx)
}

func (r *riverPeer) remove(ctx context.Context) error {
	defer r.pool.Close()
	return takeSchema(ctx, r.pool, riverSchema, true)
}

// moduleVersion returns the version of a module in this program.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "of an unknown version"
}
