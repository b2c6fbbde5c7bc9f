package mongosim_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// broken is the name of the client behind the network that breaks.
const broken = "broken"

const (
	// losing is the time that it takes until a message is lost. Then the driver sends it again.
	losing = 3 * time.Second
	// gap has the last repetition lost: the store gives a write half of the time.
	gap = store.Within/2 - losing/2
)

// breaking is a network that breaks as a test says.
type breaking struct {
	calm
	lock sync.Mutex
	what storetest.Break
	n    int // the write at which it breaks; 0 for none
	sent int // writes since Break, or commands since Meet
	last bool
	meet func()
	lag  time.Duration
	over time.Time // when the gap ends
	held chan struct{}
}

// Break implements [storetest.Network].
func (b *breaking) Break(what storetest.Break, n int) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.what, b.n, b.sent, b.held = what, n, 0, make(chan struct{})
}

// Meet implements [storetest.Network].
func (b *breaking) Meet(n int, last bool, do func()) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.n, b.sent, b.last, b.meet = n, 0, last, do
}

// Lag implements [storetest.Network].
func (b *breaking) Lag(by time.Duration) {
	b.lock.Lock()
	defer b.lock.Unlock()
	b.lag = by
}

// Mend implements [storetest.Network].
func (b *breaking) Mend() int {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.held != nil {
		close(b.held)
	}
	b.n, b.lag, b.held, b.meet = 0, 0, nil, nil
	return b.sent
}

// broken reports whether it has broken. The caller has the lock.
func (b *breaking) broken() bool { return b.n > 0 && b.sent >= b.n }

// Command implements [mongosim.Gate].
func (b *breaking) Command(client, name, _ string) mongosim.Fate {
	b.lock.Lock()
	defer b.lock.Unlock()
	lag, held := b.lag, b.held
	lost := func() bool { time.Sleep(losing); return false }
	full := b.what == storetest.Full && b.broken()
	ended := b.what == storetest.Hold || full || b.what == storetest.Gap && !time.Now().Before(b.over)
	switch {
	case client != broken:
		return mongosim.Fate{}
	case name == "isMaster": // the driver's first command on a connection
		return mongosim.Fate{}
	case name == "hello":
		return mongosim.Fate{Answer: func() bool { time.Sleep(lag); return true }}
	case b.meet != nil:
		if b.sent++; b.sent < b.n || b.last && b.sent > b.n {
			return mongosim.Fate{}
		}
		meet := b.meet
		return mongosim.Fate{Request: func() bool { meet(); return true }}
	case b.broken() && !ended:
		return mongosim.Fate{Request: lost}
	case !slices.Contains([]string{"insert", "update", "delete", "findAndModify"}, name):
		return mongosim.Fate{}
	case full:
		return mongosim.Fate{Code: mongosim.CodeOutOfDisk}
	}
	if b.sent++; b.sent != b.n {
		return mongosim.Fate{}
	}
	b.over = time.Now().Add(gap)
	switch b.what {
	case storetest.CutBefore:
		return mongosim.Fate{Request: lost}
	case storetest.CutAfter, storetest.Gap, storetest.Full:
		return mongosim.Fate{Answer: lost}
	default:
		return mongosim.Fate{Request: func() bool { <-held; return true }}
	}
}

// TestInterrupted: the store for MongoDB keeps its contract if the network fails at any write.
func TestInterrupted(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	storetest.Interrupted(t, func(t *testing.T) (well, behind storetest.Opener, n storetest.Network) {
		network := &breaking{}
		server := mongosim.New(network)
		opener := func(client string) storetest.Opener {
			return func() (store.Store, error) {
				return mongodb.OpenThrough(t.Context(), mongosim.URL, server.Dialer(client))
			}
		}
		return opener("well"), opener(broken), network
	})
}
