package kafka

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// errLate is the error of a request that was not written because the time of one of its records was over.
var errLate = errors.New("its time was over before it could be written: this machine is slow, or was stopped")

// conn is a connection to a broker that refuses to write a record whose attempt is over: if the process stood still,
// another replica may hold the occurrence. The client checks contexts when it makes a request. Contexts end when their
// timers run, which may be later.
type conn struct {
	net.Conn
	deadlines *deadlines
}

func (c conn) Write(b []byte) (int, error) {
	if c.deadlines.anyOver(b) {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: errLate} // the client takes this for a lost connection
	}
	return c.Conn.Write(b)
}

// dialer makes such connections, with TLS if there is a configuration. The name to verify is each broker's own.
func dialer(d *deadlines, config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	dial := (&net.Dialer{Timeout: dialLimit}).DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialLimit}, Config: config}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return conn{c, d}, nil
	}
}

// deadlines has the ends of the attempts whose records the client has.
type deadlines struct {
	mu       sync.Mutex
	byID     map[string]time.Time // by the record's carillon-id
	earliest time.Time            // no deadline is before this
}

// add notes a record; remove must be called when the client has done with it.
func (d *deadlines) add(id string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byID) == 0 {
		d.byID, d.earliest = make(map[string]time.Time), at
	}
	if d.byID[id] = at; at.Before(d.earliest) {
		d.earliest = at
	}
}

func (d *deadlines) remove(id string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byID[id].Equal(at) { // else a later attempt's is there
		delete(d.byID, id)
	}
}

// anyOver reports whether a request has a record whose deadline has passed by more than the tolerance.
func (d *deadlines) anyOver(request []byte) bool {
	const keyAt = 4 // behind the request's size
	if len(request) < keyAt+2 || binary.BigEndian.Uint16(request[keyAt:]) != uint16(kmsg.Produce) {
		return false
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byID) == 0 || !over(d.earliest, now) {
		return false
	}
	d.earliest = now
	for _, at := range d.byID {
		if at.Before(d.earliest) {
			d.earliest = at
		}
	}
	for {
		_, rest, found := bytes.Cut(request, idHeader)
		if !found || len(rest) < idLength {
			return false
		}
		if at, known := d.byID[string(rest[:idLength])]; known && over(at, now) {
			return true
		}
		request = rest
	}
}

// idLength is the length of a delivery id as text.
const idLength = 26

// idHeader is the beginning of the header with the delivery id in a request: its name, and the length of its value as a
// varint in zigzag code. Batches are not compressed.
var idHeader = append([]byte("carillon-id"), 2*idLength)

// over reports whether a deadline has passed by either clock: the monotonic one stands still while the machine sleeps.
func over(at, now time.Time) bool {
	at = at.Add(tolerance)
	return !now.Before(at) || !now.Round(0).Before(at.Round(0))
}
