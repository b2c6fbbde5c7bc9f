package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
)

// Submit measures how many jobs the HTTP API accepts in a second, each on disk before its answer: one by one, and in
// batches.
type Submit struct {
	// Count is the number of jobs that each round submits in batches; it submits a fourth of them one by one.
	Count int
	// Connections is the number of concurrent requests when jobs are submitted one by one.
	Connections int
}

// farAhead is the time until jobs fall due that are only to wait.
const farAhead = 30 * 24 * time.Hour

// Run implements [Mode].
func (s Submit) Run(ctx context.Context, b *Bench) error {
	submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return err
	}
	var batch, rawBatched, single, gathered, p50, p99, lone, rawLone []float64
	for round := range b.Rounds {
		w := b.work(round, s.Count)
		w.Callback = DiscardType
		w.Start, w.Every = time.Now().Add(farAhead), time.Millisecond
		limit, err := s.bareBatches(ctx, b, w)
		if err != nil {
			return fmt.Errorf("the bare client: %w", err)
		}
		rawBatched = append(rawBatched, limit)
		b.progress("round %d: bare batches %.0f/s", round+1, limit)

		idle, url, err := b.startReplica(ctx, ReplicaOptions{Idle: true})
		if err != nil {
			return err
		}
		var done Submitted
		if err := submitter.call(ctx, "submit", Submission{URL: url, Work: *w, Batch: 1000, Connections: 2},
			&done); err != nil {
			return err
		}
		batch = append(batch, perSecond(done))
		b.progress("round %d: batches %.0f/s", round+1, batch[round])

		gather, bareURL, err := s.startGather(ctx, b)
		if err != nil {
			return err
		}
		ones := *w
		ones.Prefix += "one-"
		ones.Count = max(1, s.Count/4)
		var bare Submitted
		if err := submitter.call(ctx, "submit", Submission{URL: bareURL, Work: ones, Connections: s.Connections},
			&bare); err != nil {
			return err
		}
		if err := submitter.call(ctx, "submit", Submission{URL: url, Work: ones, Connections: s.Connections},
			&done); err != nil {
			return err
		}
		single, gathered = append(single, perSecond(done)), append(gathered, perSecond(bare))
		slices.Sort(done.Latencies)
		p50 = append(p50, float64(quantile(done.Latencies, 0.5))/1000)
		p99 = append(p99, float64(quantile(done.Latencies, 0.99))/1000)
		b.progress("round %d: one by one %.0f/s, a bare endpoint %.0f/s", round+1, single[round], gathered[round])

		ones.Prefix += "alone-"
		ones.Count = max(1, min(500, s.Count/100))
		if err := submitter.call(ctx, "submit", Submission{URL: bareURL, Work: ones, Connections: 1}, &bare); err != nil {
			return err
		}
		if err := submitter.call(ctx, "submit", Submission{URL: url, Work: ones, Connections: 1}, &done); err != nil {
			return err
		}
		lone, rawLone = append(lone, perSecond(done)), append(rawLone, perSecond(bare))
		if err := errors.Join(gather.stop(), idle.stop(), b.clean(ctx)); err != nil {
			return err
		}
	}
	b.figure("batches", "jobs/s", batch, rawBatched, ratioOf(0.5))
	b.figure(fmt.Sprintf("one by one, %d connections", s.Connections), "jobs/s", single, gathered, ratioOf(0.6))
	b.figure("  its latency p50", "ms", p50, nil, nil)
	b.figure("  its latency p99", "ms", p99, nil, nil)
	b.figure("one by one, 1 connection", "jobs/s", lone, rawLone, nil)
	b.note("raw of batches: the store's own client upserts the rows that the store has of the same jobs, 1,000 at once, " +
		"with one worker or two, whichever is faster.")
	b.note("raw of one by one: a gin endpoint that gathers bodies and writes those that have come at once, as the same " +
		"rows, and does nothing else.")
	return nil
}

func perSecond(s Submitted) float64 { return float64(s.Accepted) / s.Took.Seconds() }

// bareBatches returns the number of jobs that the bare client upserts in a second.
func (s Submit) bareBatches(ctx context.Context, b *Bench, w *Work) (float64, error) {
	raw, err := openRaw(ctx, b.Store)
	if err != nil {
		return 0, err
	}
	best := 0.0
	for i, workers := range []int{1, 2} {
		half := *w
		half.Count = w.Count / 2
		half.From = i * half.Count
		start := time.Now()
		if err := upsertBy(ctx, raw, &half, workers); err != nil {
			return 0, errors.Join(err, raw.Close(ctx))
		}
		best = max(best, float64(half.Count)/time.Since(start).Seconds())
	}
	return best, raw.Close(ctx)
}

// startGather starts the bare endpoint.
func (s Submit) startGather(ctx context.Context, b *Bench) (p *part, url string, err error) {
	p, err = b.startPart(ctx, gatherRole, b.Store, &url)
	return p, url, err
}

const gatherRole = "gatherer"

// gatherer is the part that is a bare endpoint. It gathers the bodies that are posted during a write, stores them by
// the next write, and answers.
type gatherer struct {
	raw    rawStore
	server *http.Server
	posted chan gathered
	ended  chan struct{}
}

// gathered is a posted body; done receives the result of its write.
type gathered struct {
	body []byte
	done chan error
}

func (g *gatherer) do(ctx context.Context, do string, with json.RawMessage) (any, error) {
	var rawURL string
	if err := json.Unmarshal(with, &rawURL); err != nil || do != "begin" {
		return nil, errors.Join(err, fmt.Errorf("can't %q", do))
	}
	var err error
	if g.raw, err = openRaw(ctx, rawURL); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.POST("/v1/jobs", g.post)
	g.posted, g.ended = make(chan gathered, 4096), make(chan struct{})
	go g.write(context.WithoutCancel(ctx))
	g.server = &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
	go func() { _ = g.server.Serve(listener) }() // ends when the server is closed
	return "http://" + listener.Addr().String(), nil
}

func (g *gatherer) post(c *gin.Context) {
	body, err := io.ReadAll(c.Request.Body)
	if err == nil {
		done := make(chan error, 1)
		g.posted <- gathered{body, done}
		err = <-done
	}
	if err != nil {
		c.String(http.StatusInternalServerError, "%s", err)
		return
	}
	c.Data(http.StatusCreated, "application/json", body)
}

// write writes the posted bodies until posted is closed.
func (g *gatherer) write(ctx context.Context) {
	defer close(g.ended)
	var number atomic.Uint64
	now := time.Now()
	for first := range g.posted {
		batch := []gathered{first}
		for len(batch) < rawBatch && len(g.posted) > 0 {
			batch = append(batch, <-g.posted)
		}
		rows := make([]rawRow, len(batch))
		for i := range batch {
			// Multiplication by an odd number shuffles the keys, and keeps them distinct.
			rows[i] = newRawRow(strconv.FormatUint(number.Add(1)*0x9E3779B97F4A7C15, 16), now, batch[i].body)
		}
		err := g.raw.Upsert(ctx, rows)
		for _, p := range batch {
			p.done <- err
		}
	}
}

func (g *gatherer) close() error {
	if g.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := g.server.Shutdown(ctx)
	close(g.posted)
	<-g.ended
	return errors.Join(err, g.raw.Close(context.Background()))
}
