package record

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Behaviour is how a receiver behaves.
type Behaviour int

// The behaviours of receivers.
const (
	Well     Behaviour = iota // it takes the delivery at once
	Late                      // the same, after some seconds
	Never                     // it does not answer; it may have taken it
	Wrong                     // it fails
	Hopeless                  // it refuses for good
	Pauses                    // it asks for a pause
	NoReply                   // it takes the delivery, and its answer is lost
)

// Pause is that for which receivers ask.
const Pause = 2 * time.Second

// Behave draws how a receiver behaves. Sick ones fail three times as often.
func Behave(r *rand.Rand, sick bool) Behaviour {
	d := r.IntN(100)
	if !sick {
		d *= 3
	}
	for _, b := range []struct {
		below int
		how   Behaviour
	}{{12, Late}, {18, Never}, {40, Wrong}, {44, Hopeless}, {50, Pauses}, {60, NoReply}} {
		if d < b.below {
			return b.how
		}
	}
	return Well
}

// Seen returns the attempt that the header and the body of a webhook's request tell.
func Seen(header http.Header, body []byte) (d checker.Delivery, err error) {
	var payload Payload
	if err := decode(body, &payload); err != nil {
		return d, err
	}
	d = checker.Delivery{
		ID: header.Get("Webhook-Id"), Key: header.Get("Carillon-Key"), Tenant: header.Get("Carillon-Tenant"), N: payload.N,
	}
	if d.Instant, err = time.Parse(time.RFC3339, header.Get("Carillon-Timestamp")); err == nil {
		d.Attempt, err = strconv.Atoi(header.Get("Carillon-Attempt"))
	}
	return d, err
}
