package webhook

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
)

// ProxyMode is the treatment of a proxy that the environment names. A proxy looks up receivers and connects to them
// itself, so the guard would see only the proxy's address.
type ProxyMode string

// The modes.
const (
	// ProxyRefuse does not go together with a guard that restricts addresses: [Options.Open] refuses it, and [New] takes
	// it for ProxyIgnore. Without restrictions it is the same as ProxyTrust.
	ProxyRefuse ProxyMode = "refuse"
	// ProxyIgnore connects to receivers directly.
	ProxyIgnore ProxyMode = "ignore"
	// ProxyTrust uses the proxy, which must enforce the rules itself. Only addresses in URLs are checked here.
	ProxyTrust ProxyMode = "trust"
)

// environmentHasProxy reports whether the environment names a proxy for some receivers.
func environmentHasProxy() bool {
	c := httpproxy.FromEnvironment()
	return c.HTTPProxy != "" || c.HTTPSProxy != ""
}

// ways are the ways to receivers: directly, or by a proxy. Each has its own connections, so that the guard applies to
// all connections of the one, and to none of the other. Directly, short requests without TLS have a way of their own.
type ways struct {
	guard   *guard.Guard
	plain   *plain
	direct  *http.Transport
	proxied *http.Transport                         // nil if proxies are not used
	proxyOf func(target *url.URL) (*url.URL, error) // nil for no proxy
}

// newWays makes the ways, with the proxies that the environment names now.
func newWays(o *Options) *ways {
	w := &ways{guard: &o.Guard}
	connect := o.Dial
	if connect == nil {
		connect = checked(net.Dialer{Timeout: dialLimit, Resolver: o.Resolver})
	}
	direct := dialTimed(w.guarded(connect), func(there net.Conn) bool {
		at, _ := netip.ParseAddrPort(there.RemoteAddr().String()) // it is none of the Internet's if it can't be read
		return w.guard.Quotes(at.Addr())
	})
	w.plain, w.direct = newPlain(direct, idleConns(o)), transport(o, direct)
	if o.Proxy == ProxyIgnore || o.Proxy != ProxyTrust && o.Guard.Restricts() || !environmentHasProxy() {
		return w
	}
	w.proxyOf = httpproxy.FromEnvironment().ProxyFunc()
	dialProxy := func(ctx context.Context, network, address string) (net.Conn, error) {
		return connect(ctx, network, address, func(netip.AddrPort) error { return nil })
	}
	w.proxied = transport(o, dialTimed(dialProxy, func(net.Conn) bool { return w.guard.Quotes(netip.Addr{}) }))
	w.proxied.Proxy = func(req *http.Request) (*url.URL, error) { return w.proxyOf(req.URL) }
	return w
}

// send makes a request by one of the ways, and notes the connections. It refuses forbidden URLs for all. Redirects are
// not followed.
func (w *ways) send(ctx context.Context, r *request, on *taken) (*http.Response, error) {
	if err := w.guard.CheckHost(target(r.url)); err != nil {
		return nil, err
	}
	way := w.direct
	if w.proxied != nil {
		proxy, err := w.proxyOf(r.url)
		if err != nil {
			return nil, err
		}
		if proxy != nil {
			way = w.proxied
		}
	}
	if way == w.direct && r.url.Scheme == "http" && len(r.body) <= mostPlain {
		return w.plain.send(ctx, r, on)
	}
	req, err := r.of(on.traced(ctx))
	if err != nil {
		return nil, err
	}
	return way.RoundTrip(req) // of a transport and not a client: that would put the URL into its errors
}

// Close drops the idle connections.
func (w *ways) Close() {
	w.plain.Close()
	w.direct.CloseIdleConnections()
	if w.proxied != nil {
		w.proxied.CloseIdleConnections()
	}
}

// dialLimit bounds the time of connecting, with the look-up of the name.
const dialLimit = 10 * time.Second

// connector connects to a receiver. It calls check with each address that it is about to connect to, and does not
// connect to one for which check returns an error.
type connector = func(ctx context.Context, network, address string, check func(netip.AddrPort) error) (net.Conn, error)

// checked connects by the system, which tells the address that it is about to connect to.
func checked(plain net.Dialer) connector {
	return func(ctx context.Context, network, address string, check func(netip.AddrPort) error) (net.Conn, error) {
		d := plain
		d.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return check(at)
		}
		return d.DialContext(ctx, network, address)
	}
}

// guarded dials receivers. It skips forbidden addresses of a name; if there are no others, the error is a
// [*guard.Refusal]. It checks each address just before the connection, each time, so the name's addresses at other
// times do not matter.
func (w *ways) guarded(connect connector) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var all checks
		there, err := connect(ctx, network, address, func(at netip.AddrPort) error { return all.note(w.check(at)) })
		if err != nil {
			return nil, all.verdict(err)
		}
		return there, nil
	}
}

// check returns a [*guard.Refusal] if an address must not be called.
func (w *ways) check(at netip.AddrPort) error {
	if err := w.guard.Check(at.Addr(), at.Port()); err != nil || !w.guard.Restricts() {
		return err
	}
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	return w.guard.CheckOwn(at.Addr(), own)
}

// ownAddresses returns the present addresses of this machine.
func ownAddresses() (own []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own, err
}

// checks are the checks of the addresses of one name, several of which may be tried at once.
type checks struct {
	mu      sync.Mutex
	refusal error
	tried   bool // an address that may be called
}

func (c *checks) note(refusal error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if refusal != nil {
		c.refusal = refusal
	} else {
		c.tried = true
	}
	return refusal
}

var errOthersRefused = errors.New("none of its addresses that may be called can be reached, and others of them must " +
	"not be called")

// verdict returns the error of all tries. If an allowed address was tried, a later attempt may succeed. Errors do not
// contain the operator's addresses: those of refused connections, and of the name server.
func (c *checks) verdict(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil && !c.tried {
		return c.refusal
	}
	if _, refused := errors.AsType[*guard.Refusal](err); refused {
		return errOthersRefused
	}
	if unknown, ok := errors.AsType[*net.DNSError](err); ok {
		return lookUpError(unknown)
	}
	return err
}

// lookUpError returns the error of a look-up without the server that was asked, which its text names in several places.
func lookUpError(err *net.DNSError) error {
	shown := &net.DNSError{
		Err: "the look-up failed", Name: err.Name,
		IsNotFound: err.IsNotFound, IsTimeout: err.IsTimeout, IsTemporary: err.IsTemporary,
	}
	switch {
	case err.IsNotFound:
		shown.Err = "no such host"
	case err.IsTimeout:
		shown.Err = "the look-up took too long"
	}
	return shown
}
