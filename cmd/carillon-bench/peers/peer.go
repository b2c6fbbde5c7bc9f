package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// The settings that a peer is measured with.
const (
	throughput = "throughput" // what its makers use or recommend to get through a backlog
	byDefault  = "default"    // its own intervals
	tuned      = "tuned"      // the shortest ones that it takes, or that make a difference
)

// peer is a scheduler on a server. It is used once: prepare, insert, start, stop, remove, the latter whatever happened
// before.
type peer interface {
	// about tells its version, its server's, and what the settings set.
	about(ctx context.Context) (about, error)
	// prepare makes its place on the server. It answers an error that wraps errNotEmpty if anything is there already,
	// unless it is told to delete that.
	prepare(ctx context.Context, force bool) error
	// insert hands over the work, by the fastest way that the peer has. It may be called again after all was deleted by
	// remove and prepare.
	insert(ctx context.Context, w *work) error
	// start begins to work. Handle is called for each execution, with the job's payload, and does what is to be
	// measured.
	start(ctx context.Context, handle func(payload []byte)) error
	// settled tells how many jobs are done for good: the server will not hand them out again.
	settled(ctx context.Context) (int, error)
	// queries is how many statements or commands the worker has sent to the server.
	queries() int64
	// stop ends the worker in good order.
	stop(ctx context.Context) error
	// remove deletes all that was made on the server, and closes connections.
	remove(ctx context.Context) error
}

// about is what there is to tell of a peer.
type about struct{ version, store, server, how string }

// newPeer makes a peer with settings of one of the names above.
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

// instant is that of the i-th job, a whole millisecond as all of Carillon's are.
func (w *work) instant(i int) time.Time {
	return w.start.Add(time.Duration(i) * w.every).Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

// data is the payload of the i-th job, the same as Carillon's bench has.
func (w *work) data(i int) []byte {
	b := strconv.AppendInt([]byte(`{"n":`), int64(i), 10)
	b = append(b, `,"text":"`...)
	for n := 0; len(b) < w.payload-2; n++ {
		b = append(b, "abcdefghijklmnopqrstuvwxyz "[n%27])
	}
	return append(b, `"}`...)
}

// observer notes when each job of some work was executed.
type observer struct {
	work *work
	// Of each job, in microseconds from its instant to its first execution, and how often it was executed.
	deviations []int64
	times      []atomic.Int32
}

func newObserver(w *work) *observer {
	return &observer{w, make([]int64, w.count), make([]atomic.Int32, w.count)}
}

// handle notes an execution.
func (o *observer) handle(payload []byte) {
	now := time.Now()
	var job struct {
		N int `json:"n"`
	}
	if err := json.Unmarshal(payload, &job); err != nil || job.N < 0 || job.N >= o.work.count {
		return // and so it is lost
	}
	if o.times[job.N].Add(1) == 1 {
		o.deviations[job.N] = floorMicros(now.Sub(o.work.instant(job.N)))
	}
}

// seen is the deviations of the jobs that were executed, how many were not, and how many times one was that had been
// before. Nothing may be executing.
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
