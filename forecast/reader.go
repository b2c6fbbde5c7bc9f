package forecast

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Reader reads plans of one store and keeps the last one. It is safe for concurrent use.
type Reader struct {
	definitions Definitions
	destination func(job.Callback) string
	most        Bounds

	lock    sync.Mutex
	plan    *Plan         // the last one; nil if there is none
	until   time.Time     // the outcome of the last reading is not used after this
	reading chan struct{} // closed at the end of the reading under way; nil if there is none
	failure error         // of the last reading
	hour    nextHour
	rested  time.Time // no reading for the metric before this
}

// DefaultBounds keep a plan below about half a gigabyte.
var DefaultBounds = Bounds{Jobs: 2_000_000, Instants: 20_000_000}

// NewReader makes a reader. Destination names the destination of a callback.
func NewReader(definitions Definitions, destination func(job.Callback) string, most Bounds) *Reader {
	return &Reader{definitions: definitions, destination: destination, most: most}
}

// A plan is read again at this age, or at this multiple of the time that reading it took if that is longer. So reading
// takes the store at most a tenth of its time. After a failure, it is read again after planAge.
const (
	planAge  = 5 * time.Second
	planRest = 10
)

// longestRead bounds one reading.
const longestRead = 10 * time.Minute

// Plan returns a recent plan at now, and reads one if there is none. Only one is read at a time. Reading continues when
// ctx ends, so that the next call gets the plan.
func (r *Reader) Plan(ctx context.Context, now time.Time) (*Plan, error) {
	r.lock.Lock()
	if now.Before(r.until) {
		defer r.lock.Unlock()
		return r.last()
	}
	if r.reading == nil {
		r.begin(now)
	}
	reading := r.reading
	r.lock.Unlock()
	select {
	case <-reading:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.last()
}

// last returns the outcome of the last reading. The lock is held.
func (r *Reader) last() (*Plan, error) {
	if r.failure != nil {
		return nil, r.failure
	}
	return r.plan, nil
}

// begin begins to read a plan. The lock is held.
func (r *Reader) begin(now time.Time) {
	r.reading = make(chan struct{})
	go r.read(now)
}

// read reads a plan.
func (r *Reader) read(now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), longestRead)
	defer cancel()
	start := time.Now()
	var plan *Plan
	err := contained(func() (err error) {
		plan, err = Read(ctx, r.definitions, r.destination, now, r.most)
		return err
	})
	took := time.Since(start)
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.failure = err; err == nil {
		plan.Took = took
		r.plan, r.until = plan, now.Add(took+max(planAge, planRest*took))
	} else {
		r.until = now.Add(took + planAge)
	}
	close(r.reading)
	r.reading = nil
}

// contained calls a function and returns a panic as an error with the stack. In a goroutine of its own, a panic would
// end the process.
func contained(do func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
	}()
	return do()
}
