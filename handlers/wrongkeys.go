package handlers

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How many wrong keys an address may show at once, and how often it may show one more. Whoever has a right one shows
// none, but for a mistake in a configuration; a guess would have to be repeated 2^177 times.
const (
	wrongAtOnce = 20
	wrongPause  = time.Second
)

// mostAddresses bounds the addresses that are remembered, twice.
const mostAddresses = 4096

// wrongKeys counts the wrong keys that are shown from each address. When there are too many addresses, it forgets those
// that were seen the longest ago. It is safe for concurrent use.
type wrongKeys struct {
	mu          sync.Mutex
	young, aged map[netip.Addr]*rate.Limiter
}

func newWrongKeys() *wrongKeys { return &wrongKeys{young: map[netip.Addr]*rate.Limiter{}} }

// of is the limiter of an address. The caller holds the lock.
func (w *wrongKeys) of(from netip.Addr) *rate.Limiter {
	limiter, ok := w.young[from]
	if !ok {
		if limiter = w.aged[from]; limiter == nil {
			limiter = rate.NewLimiter(rate.Every(wrongPause), wrongAtOnce)
		}
		if len(w.young) >= mostAddresses {
			w.young, w.aged = make(map[netip.Addr]*rate.Limiter), w.young
		}
		w.young[from] = limiter
	}
	return limiter
}

// shown notes a wrong key.
func (w *wrongKeys) shown(from netip.Addr, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of(from).AllowN(now, 1)
}

// wait is how long an address has to wait until another of its keys is looked up; zero if it need not.
func (w *wrongKeys) wait(from netip.Addr, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	limiter := w.young[from]
	if limiter == nil {
		limiter = w.aged[from]
	}
	if limiter == nil {
		return 0
	}
	missing := 1 - limiter.TokensAt(now)
	return max(0, time.Duration(missing*float64(wrongPause)))
}

// addressOf is where a request comes from, as far as one client is told from another: of an IPv6 address the network of
// 64 bits, since a host has all addresses of that. What a header says of it can be made up.
func addressOf(remote string) netip.Addr {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{} // a socket without addresses
	}
	address := from.Addr().Unmap().WithZone("")
	if address.Is6() {
		network, _ := address.Prefix(64) // which 64 bits are no error of
		address = network.Addr()
	}
	return address
}
