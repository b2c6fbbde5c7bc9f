package chaos

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// host is the end of the receivers' names: each key has a receiver of its own.
const host = ".chaos.test"

// receive starts the proxy through which the replica reaches all receivers. So it is known who sends.
func (r *replica) receive(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.through = listener.Addr().String()
	r.proxy = &http.Server{Handler: http.HandlerFunc(r.take), ReadHeaderTimeout: time.Minute}
	go func() { _ = r.proxy.Serve(listener) }()
	return nil
}

// behaviour draws how a receiver behaves.
func (w *world) behaviour() record.Behaviour {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.calm {
		return record.Well
	}
	return record.Behave(w.random, w.sick > 0)
}

// chance returns a random time below d.
func (w *world) chance(d time.Duration) time.Duration {
	w.lock.Lock()
	defer w.lock.Unlock()
	return time.Duration(w.random.Int64N(int64(d)))
}

// take takes a delivery, or not.
func (r *replica) take(response http.ResponseWriter, request *http.Request) {
	begun, ahead := time.Now(), r.clock.ahead()
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the replica cut it off
	}
	seen, err := record.Seen(request.Header, body)
	if err != nil {
		r.fault("a delivery can't be read: %v: %s", err, body)
		return
	}
	seen.Replica, seen.Begun, seen.Local = r.index, begun, begun.Add(ahead)
	attempt, took := r.again(&seen)
	if attempt == nil {
		attempt = new(r.record.Delivery(seen))
	}
	answered, told := false, false
	defer func() {
		ended := time.Now()
		attempt.End(ended, took, told && request.Context().Err() == nil)
		if !answered {
			r.cutOff(&seen, attempt, took)
			panic(http.ErrAbortHandler) // the connection is closed
		}
		r.answered(&seen)
	}()
	wait := func(d time.Duration) bool {
		select {
		case <-request.Context().Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	status := http.StatusOK
	switch r.behaviour() {
	case record.Late:
		if !wait(r.chance(4 * time.Second)) {
			took = took || r.coin()
			return
		}
	case record.Never:
		// The attempt is over then, even if the replica is stopped and does not hang up.
		wait(callbackTimeout)
		took = took || r.coin()
		return
	case record.Wrong:
		status = http.StatusInternalServerError
	case record.Hopeless:
		status = http.StatusGone
		attempt.Refuse()
	case record.Pauses:
		attempt.Ask(record.Pause)
		response.Header().Set("Retry-After", strconv.Itoa(int(record.Pause/time.Second)))
		status = http.StatusServiceUnavailable
	case record.NoReply:
		took = true
		return
	default:
		most := 30 * time.Millisecond
		if r.coin() { // so that faults come meanwhile
			most = 600 * time.Millisecond
		}
		if !wait(r.chance(most)) {
			return
		}
	}
	answered, told = true, status == http.StatusOK
	took = took || told
	response.WriteHeader(status)
	_ = http.NewResponseController(response).Flush()
}

// cut is an attempt whose connection was closed before an answer.
type cut struct {
	seen    checker.Delivery
	attempt *record.Delivery
	took    bool
	at      time.Time
}

// cutOff keeps an attempt whose connection is closed now.
func (r *replica) cutOff(d *checker.Delivery, attempt *record.Delivery, took bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.cuts = append(r.cuts, cut{*d, attempt, took, time.Now()})
}

// answered forgets the closed connections of an attempt that has been answered: the same again is another attempt.
func (r *replica) answered(d *checker.Delivery) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.cuts = slices.DeleteFunc(r.cuts, func(c cut) bool { return c.of(d) })
}

// of reports whether an attempt has the id, number and payload of one that was cut off.
func (c *cut) of(d *checker.Delivery) bool {
	return c.seen.ID == d.ID && c.seen.Attempt == d.Attempt && c.seen.N == d.N
}

// again returns the attempt of which a request is a part: a request is sent once more at once, as a part of the same
// attempt, if its connection, which was in use before, turns out to be closed. It is nil if the request is an attempt
// of its own. Taken is set if the receiver took the first one.
func (r *replica) again(d *checker.Delivery) (attempt *record.Delivery, taken bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for i := len(r.cuts) - 1; i >= 0; i-- {
		if c := &r.cuts[i]; c.of(d) && d.Begun.Sub(c.at) < time.Second {
			return c.attempt, c.took
		}
	}
	return nil, false
}

func (w *world) coin() bool { return w.chance(2) == 0 }

// random is the source of all that is not planned.
func random(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // it must be repeatable
}
