package access

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The number of failed tries that an address may make at once, and the time after which it may make one more. A client
// with a valid key makes none, except by a wrong configuration; a guess would need 2^177 tries.
const (
	triesAtOnce = 20
	tryPause    = time.Second
)

// mostAddresses is half of the maximum number of remembered addresses. An address is remembered until it may make all
// its tries again.
const mostAddresses = 4096

// Tries limits the failed tries of each address, such as wrong keys. When there are too many addresses, it forgets the
// ones seen the longest ago. It is safe for concurrent use.
type Tries struct {
	mutex sync.Mutex
	made  recent[netip.Addr, *rate.Limiter]
}

// NewTries returns a count of no tries.
func NewTries() *Tries {
	return &Tries{made: recent[netip.Addr, *rate.Limiter]{most: mostAddresses, keep: triesAtOnce * tryPause}}
}

// Failed counts a failed try. from is the other end of a connection, as in [net/http.Request.RemoteAddr].
func (t *Tries) Failed(from string, now time.Time) {
	address := addressOf(from)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	limiter, ok := t.made.get(address, now)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(tryPause), triesAtOnce)
		t.made.put(address, limiter, now)
	}
	limiter.AllowN(now, 1)
}

// Wait returns the time until an address may make another try; zero if now.
func (t *Tries) Wait(from string, now time.Time) time.Duration {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	limiter, ok := t.made.get(addressOf(from), now)
	if !ok {
		return 0
	}
	missing := 1 - limiter.TokensAt(now)
	return max(0, time.Duration(missing*float64(tryPause)))
}

// addressOf returns the address that identifies a client. For IPv6 it is the /64 network, since one host may use all
// its addresses. Headers are ignored: a client can forge them.
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
