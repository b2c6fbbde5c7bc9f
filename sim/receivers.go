package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// sender is the callback type of the simulation. Its receivers are a part of the world.
type sender struct{ *node }

// data is the callback data of the simulation.
type data struct {
	To      string         `json:"to"`
	Payload record.Payload `json:"payload"`
	Takes   Span           `json:"takes,omitzero"` // as in [Op]
	Fails   int            `json:"fails,omitzero"`
}

// Type implements [callbacks.Sender].
func (*sender) Type() string { return "sim" }

// Validate implements [callbacks.Sender].
func (*sender) Validate([]byte) error { return nil }

// theirs is the receiver that only one tenant may use.
const theirs = "theirs"

// grants are the receivers that each tenant may use.
var grants = callbacks.Grants{
	{Tenant: callbacks.EveryTenant, Pattern: "receiver-*"}, {Tenant: otherTenant, Pattern: theirs},
}

// Granted implements [callbacks.Granter]. The sending does not ask it again, so a receiver sees each job that a
// submission lets pass.
func (*sender) Granted(tenant string, raw []byte) error {
	if grants.Allow(tenant, decoded(raw).To) {
		return nil
	}
	return job.InvalidField("/to", "is not one that the tenant may use")
}

// Destination implements [callbacks.Sender].
func (*sender) Destination(raw []byte) string { return decoded(raw).To }

func decoded(raw []byte) (d data) {
	_ = json.Unmarshal(raw, &d)
	return d
}

var (
	errAnswer  = errors.New("the receiver has failed")
	errNoReply = errors.New("the receiver's answer was lost")
	errDead    = errors.New("the replica is dead")
)

// Send implements [callbacks.Sender].
func (s *sender) Send(ctx context.Context, d callbacks.Delivery) error {
	if s.isDead() {
		return errDead
	}
	seen := checker.Delivery{
		Replica: s.replica, ID: d.ID.String(), Key: d.Name.Key,
		Tenant: strings.TrimPrefix(d.Name.Tenant, job.DefaultTenant), To: decoded(d.Data).To,
		Instant: d.Timestamp, Attempt: d.Attempt, N: decoded(d.Data).Payload.N,
		Begun: time.Now(), Local: s.clock.now().Round(0),
	}
	attempt := s.record.Delivery(seen)
	took, err := d.Attempt > decoded(d.Data).Fails, error(nil)
	switch {
	case !took:
		err = errAnswer
	case decoded(d.Data).Fails == 0:
		took, err = s.receive(ctx, attempt, decoded(d.Data).Takes.D())
	}
	ended := time.Now()
	s.standStill()
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	attempt.End(ended, took, took && err == nil && !s.isDead())
	return err
}

// receive has a receiver behave at random, or take the time that it needs. It returns early if ctx ends.
func (w *world) receive(ctx context.Context, attempt record.Delivery, takes time.Duration) (took bool, err error) {
	pause := func(length time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(length):
			return true
		}
	}
	wait := func(most time.Duration) bool {
		return pause(w.chance(func(r *rand.Rand) time.Duration {
			return time.Millisecond + time.Duration(r.Int64N(int64(most)))
		}))
	}
	if takes > 0 {
		took = pause(takes)
		return took, ctx.Err()
	}
	switch w.behaviour() {
	case record.Late:
		if !wait(4 * time.Second) {
			return w.coin(), ctx.Err()
		}
	case record.Never:
		<-ctx.Done()
		return w.coin(), ctx.Err()
	case record.Wrong:
		wait(20 * time.Millisecond)
		return false, errAnswer
	case record.Hopeless:
		attempt.Refuse()
		return false, callbacks.Permanent(errAnswer)
	case record.Pauses:
		attempt.Ask(record.Pause)
		return false, callbacks.RetryAfter(errAnswer, record.Pause)
	case record.NoReply:
		wait(20 * time.Millisecond)
		return true, errNoReply
	case record.Well:
		if !wait(30 * time.Millisecond) {
			return false, ctx.Err()
		}
	}
	return true, nil
}

// behaviour draws how a receiver behaves.
func (w *world) behaviour() (how record.Behaviour) {
	w.net.with(func() {
		if !w.calm {
			how = record.Behave(w.net.random, w.net.during(Receivers, -1) != nil)
		}
	})
	return how
}

func (w *world) chance(of func(*rand.Rand) time.Duration) (d time.Duration) {
	w.net.with(func() { d = of(w.net.random) })
	return d
}

func (w *world) coin() (heads bool) {
	w.net.with(func() { heads = w.net.random.IntN(2) == 0 })
	return heads
}

// The addresses of receivers of webhooks. Operators deny those of the second.
var (
	allowedAddress = netip.MustParseAddr("10.1.0.1")
	deniedAddress  = netip.MustParseAddr("10.66.0.1")
)

// rules are those of the operator, as the checker knows them.
var rules = map[string]checker.Rule{
	theirs:                       {Tenants: []string{otherTenant}},
	deniedAddress.String():       {},
	"http://10.66.0.1/":          {},
	"http://0x0a420001/":         {},
	"http://[::ffff:10.66.0.1]/": {},
	"http://closed.sim/":         {Later: true},
	"http://turns.sim/":          {Later: true},
}

// lookUp returns the addresses of a host at this moment.
func (w *world) lookUp(host string) []netip.Addr {
	switch host {
	case "closed.sim":
		return []netip.Addr{deniedAddress}
	case "both.sim":
		return []netip.Addr{deniedAddress, allowedAddress}
	case "turns.sim":
		if w.coin() {
			return []netip.Addr{deniedAddress}
		}
		return []netip.Addr{allowedAddress}
	case "open.sim":
		return []netip.Addr{allowedAddress}
	default:
		return guard.Literals(host)
	}
}

// webhooks has a replica's real sender of webhooks, with a simulated network and simulated receivers. It is the
// [net.Listener] of the receivers.
type webhooks struct {
	*node
	sender  *webhook.Sender
	server  http.Server
	dialled chan net.Conn
	ended   chan struct{}
}

// webhooks makes the sender of a replica's webhooks.
func (n *node) webhooks() *webhooks {
	h := &webhooks{node: n, dialled: make(chan net.Conn), ended: make(chan struct{})}
	denied := guard.Guard{Deny: guard.Prefixes{netip.PrefixFrom(deniedAddress, 16).Masked()}}
	h.sender = webhook.New(webhook.Options{Guard: denied, Proxy: webhook.ProxyIgnore, Dial: h.dial})
	h.server.Handler = http.HandlerFunc(h.take)
	h.server.SetKeepAlivesEnabled(false)
	go func() { _ = h.server.Serve(h) }()
	return h
}

// end closes all connections.
func (h *webhooks) end() {
	_ = h.server.Close()
	_ = h.sender.Close()
}

// dial connects to a receiver, as the system does: it tries the addresses of a name one after the other.
func (h *webhooks) dial(
	_ context.Context, _, address string, check func(netip.AddrPort) error,
) (net.Conn, error) {
	if h.isDead() {
		return nil, errDead
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	err = &net.DNSError{Name: host, IsNotFound: true}
	for _, a := range h.lookUp(host) {
		at := netip.AddrPortFrom(a, 80)
		if err = check(at); err != nil {
			continue
		}
		here, there := net.Pipe()
		select {
		case h.dialled <- &wire{Conn: there, at: at}:
			return &wire{Conn: here, at: at, of: h.node}, nil
		case <-h.ended:
			return nil, errDead
		}
	}
	return nil, err
}

// Accept implements [net.Listener].
func (h *webhooks) Accept() (net.Conn, error) {
	select {
	case c := <-h.dialled:
		return c, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *webhooks) Close() error {
	close(h.ended)
	return nil
}

// Addr implements [net.Listener].
func (*webhooks) Addr() net.Addr { return &net.TCPAddr{} }

// wire is an end of a connection to a receiver. The replica's end has the replica, which may stand still.
type wire struct {
	net.Conn
	at netip.AddrPort
	of *node
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if w.of != nil {
		w.of.standStill()
	}
	return n, err
}

// RemoteAddr returns the receiver's address.
func (w *wire) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(w.at) }

// LocalAddr returns the receiver's address too, for its own side.
func (w *wire) LocalAddr() net.Addr { return w.RemoteAddr() }

// take is a receiver's answer to a webhook. A receiver that refuses one for good points to an address that must not be
// called.
func (h *webhooks) take(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the replica has hung up
	}
	seen, err := record.Seen(r.Header, body)
	if err != nil {
		panic(err)
	}
	seen.Replica, seen.Begun, seen.Local = h.replica, begun, h.clock.now().Round(0)
	seen.To = r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort().Addr().Unmap().String()
	attempt := h.record.Delivery(seen)
	// The attempt is over then, even if the replica stands still and does not hang up.
	ctx, cancel := context.WithTimeout(r.Context(), callbackTimeout)
	defer cancel()
	took, err := h.receive(ctx, attempt, 0)
	failure, _ := errors.AsType[*callbacks.Failure](err)
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errNoReply), ctx.Err() != nil:
		attempt.End(time.Now(), took, false)
		panic(http.ErrAbortHandler)
	case err == nil:
		status = http.StatusOK
	case failure != nil && failure.Permanent:
		w.Header().Set("Location", "http://"+deniedAddress.String()+"/")
		status = http.StatusTemporaryRedirect
	case failure != nil:
		w.Header().Set("Retry-After", strconv.Itoa(int(record.Pause/time.Second)))
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	err = http.NewResponseController(w).Flush()
	attempt.End(time.Now(), took, took && err == nil && ctx.Err() == nil && !h.isDead())
}
