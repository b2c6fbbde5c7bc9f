package rabbitmq

import (
	"errors"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"
)

// wire is the connection's socket as the AMQP library sees it: it gathers written bytes, and sends them while more are
// being gathered. The library writes each message at once, which costs a system call per message here and a wake-up per
// message in the broker. Gathered messages are written together, dozens at a time under load, and a single one without
// delay.
//
// Write never waits, since the library holds locks meanwhile, and a wait for these can't be cut short. Instead,
// publishers wait for room first, see [wire.reserve].
type wire struct {
	net.Conn

	mu       sync.Mutex
	gathered []byte
	reserved int           // bytes of messages which are about to be written
	messages []*message    // these messages, and those with gathered bytes
	room     chan struct{} // closed when there may be room again; nil while no publisher waits for that
	closing  bool
	err      error // the reason that no more can be written

	more chan struct{}  // wakes run
	done sync.WaitGroup // run
}

// message is a message that is written, or about to be.
type message struct {
	size    int
	ends    time.Time // the end of its attempt; zero for none
	written bool
}

// errLate is the error of a connection that is cut because a message could not be written in time. The process may have
// stood still, or the broker may have read nothing, until another replica held the delivery.
var errLate = errors.New("a message could not be written in time: this machine or the broker is slow, or was stopped")

const (
	// wireRoom is the maximum number of gathered bytes. It is somewhat larger than the kernel's buffers, so that the
	// socket is never idle.
	wireRoom = 512 << 10
	// closeLimit bounds the time for the last writes.
	closeLimit = time.Second
)

// newWire makes a wire and starts it. It ends when it is closed or cut, or a write fails.
func newWire(socket net.Conn) *wire {
	w := &wire{Conn: socket, more: make(chan struct{}, 1)}
	w.done.Go(w.run)
	return w
}

// Write takes all of b. Its error is that of an earlier write.
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if w.closing {
		return 0, net.ErrClosed
	}
	w.gathered = append(w.gathered, b...)
	w.wake()
	return len(b), nil
}

// Close closes the socket once it has taken all written bytes, or after [closeLimit]. It does not wait for that.
func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
	w.wake()
	return w.Conn.SetWriteDeadline(time.Now().Add(closeLimit))
}

// SetWriteDeadline does nothing, since Write never waits. TLS sets a past deadline before it closes the socket, which
// would prevent its last writes.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// cut closes the socket at once.
func (w *wire) cut() {
	w.fail(net.ErrClosed)
	_ = w.Conn.Close()
}

// reserve takes room for a message. If there is none, it returns a channel that is closed when another try may succeed.
// A message always has room if it is the only one, however large it is.
func (w *wire) reserve(m *message) (full <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if there := w.reserved + len(w.gathered); w.err == nil && there > 0 && there+m.size > wireRoom {
		if w.room == nil {
			w.room = make(chan struct{})
		}
		return w.room
	}
	w.reserved += m.size
	w.messages = append(w.messages, m)
	return nil
}

// release gives back the room of a message: it was written, and so counts as gathered, or will never be written.
func (w *wire) release(m *message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserved -= m.size
	m.written = true
	if len(w.gathered) == 0 { // else run makes room when it takes that
		w.makeRoom()
	}
}

// makeRoom wakes the publishers that wait for room; with the lock held.
func (w *wire) makeRoom() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// wake makes run look for work.
func (w *wire) wake() {
	select {
	case w.more <- struct{}{}:
	default: // it is awake already
	}
}

func (w *wire) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.makeRoom()
	w.wake()
}

// run writes the gathered bytes. There are two buffers: one is written while the other is filled.
func (w *wire) run() {
	defer func() { _ = w.Conn.Close() }() // so that the library's reader notices
	var buffer []byte
	for range w.more {
		// Let the publishers that the last confirms woke write first, so that one write has all their messages.
		runtime.Gosched()
		var last bool
		var ends time.Time
		if buffer, ends, last = w.take(buffer); len(buffer) > 0 {
			if over(ends) {
				w.drop()
				return
			}
			if _, err := w.Conn.Write(buffer); err != nil {
				w.fail(err)
				return
			}
		}
		if last {
			return
		}
		if buffer = buffer[:0]; cap(buffer) > 2*wireRoom { // a large message's
			buffer = nil
		}
	}
}

// take returns the gathered bytes, in exchange for an empty buffer. Ends is the earliest end of the attempts whose
// messages may be among the bytes, zero if none ends. Last reports that no more bytes will follow.
func (w *wire) take(empty []byte) (gathered []byte, ends time.Time, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gathered, w.gathered = w.gathered, empty
	w.makeRoom()
	for _, m := range w.messages {
		if !m.ends.IsZero() && (ends.IsZero() || m.ends.Before(ends)) {
			ends = m.ends
		}
	}
	w.messages = slices.DeleteFunc(w.messages, func(m *message) bool { return m.written })
	return gathered, ends, w.closing || w.err != nil
}

// over reports whether a time has passed by either clock: the monotonic one stands still while the machine sleeps.
func over(ends time.Time) bool {
	now := time.Now()
	return !ends.IsZero() && (!now.Before(ends) || !now.Round(0).Before(ends.Round(0)))
}

// drop gives up the gathered bytes, and those that the kernel has still to send.
func (w *wire) drop() {
	w.fail(errLate)
	if c, ok := w.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0) // a failure changes nothing
	}
	_ = w.Conn.Close()
}
