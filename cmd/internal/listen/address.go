// Package listen is how a service is reached: its addresses, TLS with certificates that are replaced while it runs, and
// a bound on its connections, at which clients that keep it waiting make room for others.
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

// Address is an option's host and port to listen at. Without a host it is all addresses of this machine; empty is
// nowhere.
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

// Loopback tells whether only this machine can reach who listens at the address. Nobody can where it is empty. Names
// other than localhost may stand for any address.
func (a Address) Loopback() bool {
	host, _, _ := net.SplitHostPort(string(a)) // it was read as one
	ip, err := netip.ParseAddr(host)
	return a == "" || host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// Reachable is where to reach on this machine who listens at the address.
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

// Open listens at the address that an option has, which errors name. An error that trying again can't mend is a
// [cli.UsageError].
func (a Address) Open(ctx context.Context, option string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", string(a))
	switch {
	case err == nil:
		return listener, nil
	case errors.Is(err, syscall.EADDRINUSE): // it may be free in a moment
		return nil, fmt.Errorf("--%s: %w (by another program, or by a replica that still runs; another port is had by "+
			"--%[1]s=HOST:PORT)", option, err)
	default:
		return nil, cli.Usage(fmt.Errorf("--%s: %w", option, err))
	}
}
