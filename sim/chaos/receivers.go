package chaos

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
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

// How a receiver may behave.
const (
	well = iota
	late
	never
	wrong
	hopeless
	pauses
	noReply
)

// behaviour draws how a receiver behaves.
func (w *world) behaviour() int {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.calm {
		return well
	}
	d := w.random.IntN(100)
	if w.sick == 0 {
		d *= 3
	}
	for _, b := range []struct{ below, how int }{
		{12, late}, {18, never}, {40, wrong}, {44, hopeless}, {50, pauses}, {60, noReply},
	} {
		if d < b.below {
			return b.how
		}
	}
	return well
}

// chance returns a random time below d.
func (w *world) chance(d time.Duration) time.Duration {
	w.lock.Lock()
	defer w.lock.Unlock()
	return time.Duration(w.random.Int64N(int64(d)))
}

// take takes a delivery, or not.
func (r *replica) take(response http.ResponseWriter, request *http.Request) {
	begun := time.Now()
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the replica cut it off
	}
	var payload struct{ N int }
	instant, err := time.Parse(time.RFC3339, request.Header.Get("Carillon-Timestamp"))
	if err == nil {
		err = json.Unmarshal(body, &payload)
	}
	attempt, err2 := strconv.Atoi(request.Header.Get("Carillon-Attempt"))
	if err != nil || err2 != nil {
		r.fault("a delivery can't be read: %v, %v: %s", err, err2, body)
		return
	}
	i := r.seen(checker.Delivery{
		Replica: r.index, ID: request.Header.Get("Webhook-Id"), Key: strings.TrimSuffix(request.Host, host),
		Instant: instant, Attempt: attempt, N: payload.N, Begun: begun, Local: begun,
	})
	took, answered := false, false
	defer func() {
		ended := time.Now()
		told := answered && request.Context().Err() == nil
		r.update(i, func(d *checker.Delivery) { d.Ended, d.Took, d.Told = ended, took, told })
		if !answered {
			panic(http.ErrAbortHandler) // the connection is closed
		}
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
	case late:
		if !wait(r.chance(4 * time.Second)) {
			took = r.coin()
			return
		}
	case never:
		// The attempt is over then, even if the replica is stopped and does not hang up.
		wait(callbackTimeout)
		took = r.coin()
		return
	case wrong:
		status = http.StatusInternalServerError
	case hopeless:
		status = http.StatusGone
	case pauses:
		response.Header().Set("Retry-After", "2")
		status = http.StatusServiceUnavailable
	case noReply:
		took = true
		return
	default:
		if !wait(r.chance(30 * time.Millisecond)) {
			return
		}
	}
	took, answered = status == http.StatusOK, true
	response.WriteHeader(status)
	_ = http.NewResponseController(response).Flush()
}

func (w *world) coin() bool { return w.chance(2) == 0 }

func (w *world) seen(d checker.Delivery) int {
	w.lock.Lock()
	defer w.lock.Unlock()
	d.Ended = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	w.history.Deliveries = append(w.history.Deliveries, d)
	return len(w.history.Deliveries) - 1
}

func (w *world) update(i int, change func(*checker.Delivery)) {
	w.lock.Lock()
	defer w.lock.Unlock()
	change(&w.history.Deliveries[i])
}

// random is the source of all that is not planned.
func random(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // it must be repeatable
}
