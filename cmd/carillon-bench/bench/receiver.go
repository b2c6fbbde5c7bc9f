package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

const receiverRole = "receiver"

// receiver is the part that receives webhooks.
type receiver struct {
	server *http.Server

	lock       sync.Mutex
	deviations []int64
	ids        map[string]int // number of requests by delivery id
	options    ReceiverOptions
}

// ReceiverOptions are the options of a receiver.
type ReceiverOptions struct {
	// Track makes it record the id and the deviation of each delivery; otherwise it only answers.
	Track bool `json:"track"`
	// Refuse is the fraction of requests that it answers with an error.
	Refuse float64 `json:"refuse"`
	// Delay is the time that each of its answers takes.
	Delay time.Duration `json:"delay"`
}

// Received is a receiver's record.
type Received struct {
	Deliveries int     `json:"deliveries"` // distinct ones
	Duplicates int     `json:"duplicates"`
	Deviations []int64 `json:"deviations"` // microseconds from the instant to the arrival
}

func (r *receiver) do(ctx context.Context, do string, with json.RawMessage) (any, error) {
	switch do {
	case "begin":
		if err := json.Unmarshal(with, &r.options); err != nil {
			return nil, err
		}
		r.ids = map[string]int{}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		r.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(r.receive)}
		go func() { _ = r.server.Serve(listener) }() // ends when the server is closed
		return "http://" + listener.Addr().String() + "/", nil
	case "received":
		r.lock.Lock()
		defer r.lock.Unlock()
		got := Received{Deliveries: len(r.ids), Deviations: r.deviations}
		for _, n := range r.ids {
			got.Duplicates += n - 1
		}
		return got, nil
	case "reset":
		r.lock.Lock()
		defer r.lock.Unlock()
		r.ids, r.deviations = map[string]int{}, nil
		return nil, nil
	default:
		return nil, fmt.Errorf("can't %q", do)
	}
}

func (r *receiver) receive(w http.ResponseWriter, q *http.Request) {
	now := time.Now()
	_, _ = io.Copy(io.Discard, q.Body)
	if r.options.Refuse > 0 && rand.Float64() < r.options.Refuse {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if r.options.Delay > 0 && sleep(q.Context(), r.options.Delay) != nil {
		return // the client no longer waits
	}
	w.WriteHeader(http.StatusNoContent)
	if !r.options.Track {
		return
	}
	instant, err := time.Parse(time.RFC3339, q.Header.Get("Carillon-Timestamp"))
	r.lock.Lock()
	defer r.lock.Unlock()
	r.ids[q.Header.Get("webhook-id")]++
	if err == nil {
		r.deviations = append(r.deviations, floorMicros(now.Sub(instant)))
	}
}

func (r *receiver) close() error {
	if r.server == nil {
		return nil
	}
	return r.server.Close()
}
