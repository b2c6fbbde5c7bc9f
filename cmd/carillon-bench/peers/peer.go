package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// The names of a peer's settings.
const (
	throughput = "throughput" // the settings that its makers use or recommend for a backlog
	byDefault  = "default"    // its own intervals
	tuned      = "tuned"      // the shortest intervals that it accepts, or that make a difference
)

// peer is a scheduler on a server. It is used once, in this order: prepare, insert, start, stop, remove. Remove is
// always called.
type peer interface {
	// about returns its version, its server's, and a description of the settings.
	about(ctx context.Context) (about, error)
	// prepare creates its schema or keys on the server. If anything is there already, it deletes that if force is set,
	// and otherwise returns an error that wraps errNotEmpty.
	prepare(ctx context.Context, force bool) error
	// insert hands over the work by the peer's fastest way. It may be called again after remove and prepare have
	// deleted everything.
	insert(ctx context.Context, w *work) error
	// start starts the worker. It calls handle for each execution, with the job's payload.
	start(ctx context.Context, handle func(payload []byte)) error
	// settled returns the number of jobs that the server will not hand out again.
	settled(ctx context.Context) (int, error)
	// queries returns the number of statements or commands that the worker has sent to the server.
	queries() int64
	// stop ends the worker in good order.
	stop(ctx context.Context) error
	// remove deletes everything that was created on the server, and closes connections.
	remove(ctx context.Context) error
}

// about describes a peer.
type about struct{ version, store, server, how string }

// newPeer returns a peer with one of the settings above.
func newPeer(ctx context.Context, o *options, subject, settings string) (peer, error) {
	switch subject {
	case "river":
		return newRiver(ctx, o.postgres, settings)
	case "table":
		return newTable(ctx, o.postgres, settings)
	case "asynq":
		return newAsynq(o.redis, settings)
	case "zset":
		return newZset(o.redis, settings)
	default:
		return nil, fmt.Errorf("there is no peer %q", subject)
	}
}

// work describes jobs.
type work struct {
	count   int
	payload int
	start   time.Time // the instant of the first
	every   time.Duration
}

// instant returns the instant of the i-th job: a whole millisecond, as all of Carillon's are.
func (w *work) instant(i int) time.Time {
	return w.start.Add(time.Duration(i) * w.every).Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

// data returns the payload of the i-th job, the same as in Carillon's bench.
func (w *work) data(i int) []byte {
	b := strconv.AppendInt([]byte(`{"n":`), int64(i), 10)
	b = append(b, `,"text":"`...)
	for n := 0; len(b) < w.payload-2; n++ {
		b = append(b, "abcdefghijklmnopqrstuvwxyz "[n%27])
	}
	return append(b, `"}`...)
}

// observer records the executions of a work's jobs.
type observer struct {
	work *work
	// For each job: microseconds from its instant to its first execution, and the number of executions.
	deviations []int64
	times      []atomic.Int32
}

func newObserver(w *work) *observer {
	return &observer{w, make([]int64, w.count), make([]atomic.Int32, w.count)}
}

// handle records an execution.
func (o *observer) handle(payload []byte) {
	now := time.Now()
	var job struct {
		N int `json:"n"`
	}
	if err := json.Unmarshal(payload, &job); err != nil || job.N < 0 || job.N >= o.work.count {
		return // the job counts as lost
	}
	if o.times[job.N].Add(1) == 1 {
		o.deviations[job.N] = floorMicros(now.Sub(o.work.instant(job.N)))
	}
}

// seen returns the deviations of the executed jobs, the number of jobs that were not executed, and the number of
// repeated executions. No execution may be running.
func (o *observer) seen() (deviations []int64, lost, doubled int) {
	for i := range o.times {
		switch n := int(o.times[i].Load()); n {
		case 0:
			lost++
		default:
			doubled += n - 1
			deviations = append(deviations, o.deviations[i])
		}
	}
	return deviations, lost, doubled
}

// floorMicros rounds down, so that a nanosecond early counts as early.
func floorMicros(d time.Duration) int64 {
	us := d.Microseconds()
	if d < 0 && d%time.Microsecond != 0 {
		us--
	}
	return us
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
