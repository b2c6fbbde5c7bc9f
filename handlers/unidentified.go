package handlers

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The number of wrong keys, or of requests without one, that an address may send at once, and the time after which it
// may send one more. A client with a valid key sends none, except by a wrong configuration; a guess would need 2^177
// tries.
const (
	wrongAtOnce = 20
	wrongPause  = time.Second
)

// mostAddresses is half of the maximum number of remembered addresses.
const mostAddresses = 4096

// tries counts the wrong keys from each address, or the requests without a key. When there are too many addresses, it
// forgets the ones seen the longest ago. It is safe for concurrent use.
type tries struct {
	mu          sync.Mutex
	young, aged map[netip.Addr]*rate.Limiter
}

func newTries() *tries { return &tries{young: map[netip.Addr]*rate.Limiter{}} }

// of returns the limiter of an address. The caller holds the lock.
func (t *tries) of(from netip.Addr) *rate.Limiter {
	limiter, ok := t.young[from]
	if !ok {
		if limiter = t.aged[from]; limiter == nil {
			limiter = rate.NewLimiter(rate.Every(wrongPause), wrongAtOnce)
		}
		if len(t.young) >= mostAddresses {
			t.young, t.aged = make(map[netip.Addr]*rate.Limiter), t.young
		}
		t.young[from] = limiter
	}
	return limiter
}

// shown counts a try.
func (t *tries) shown(from netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(from).AllowN(now, 1)
}

// wait returns the time until another try of an address is allowed; zero if now.
func (t *tries) wait(from netip.Addr, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	limiter := t.young[from]
	if limiter == nil {
		limiter = t.aged[from]
	}
	if limiter == nil {
		return 0
	}
	missing := 1 - limiter.TokensAt(now)
	return max(0, time.Duration(missing*float64(wrongPause)))
}

// addressOf returns the address that identifies a request's client. For IPv6 it is the /64 network, since one host may
// use all its addresses. Headers are ignored: a client can forge them.
func addressOf(remote string) netip.Addr {
	from, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{} // a socket without addresses
	}
	address := from.Addr().Unmap().WithZone("")
	if address.Is6() {
		network, _ := address.Prefix(64) // 64 bits are valid for IPv6
		address = network.Addr()
	}
	return address
}
