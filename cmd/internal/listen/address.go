// Package listen has the listeners of a service: addresses, TLS with certificates that may be replaced while it runs,
// and a bound on connections. At the bound, connections that wait for their clients are closed to make room for others.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// Address is an option with a host and port to listen at. Without a host it means all addresses of this machine; empty
// means no listener.
type Address string

// Set implements [flag.Value].
func (a *Address) Set(s string) error {
	*a = Address(s)
	_, port, err := net.SplitHostPort(s)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err == nil && port != "" {
		return nil
	}
	port = "8080"
	if _, err := net.LookupPort("tcp", s); err == nil && s != "" {
		port = s
	}
	return fmt.Errorf("must be HOST:PORT, such as 127.0.0.1:%s, or :%[1]s for all of this machine's addresses; not %q",
		port, s)
}

// String implements [flag.Value].
func (a *Address) String() string { return string(*a) }

// Loopback reports whether only this machine can reach a listener at the address. It is true for an empty address.
// Names other than localhost may stand for any address.
func (a Address) Loopback() bool {
	host, _, _ := net.SplitHostPort(string(a)) // it is valid: Set has checked it
	ip, err := netip.ParseAddr(host)
	return a == "" || host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Reachable returns the host and port at which this machine reaches a listener at the address.
func (a Address) Reachable() string {
	host, port, _ := net.SplitHostPort(string(a))
	switch ip := net.ParseIP(host); {
	case host == "" || ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6zero):
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

// Open listens at an option's address. Errors name the option. An error that a retry can't fix is a [cli.UsageError].
func (a Address) Open(ctx context.Context, option string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", string(a))
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE): // the port may be free in a moment
		return nil, fmt.Errorf("--%s: %w (by another program, or by a replica that still runs; choose another port by "+
			"--%[1]s=HOST:PORT)", option, err)
	default:
		return nil, cli.Usage(fmt.Errorf("--%s: %w", option, err))
	}
}
