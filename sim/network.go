package sim

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/sim/mongosim"
)

// network is the link between the replicas and the store: it implements [mongosim.Gate] by the faults of a plan.
type network struct {
	interleaved bool

	lock   sync.Mutex
	random *rand.Rand
	nodes  map[string]*node
	active []*Fault // the faults of this moment

	commands int
	trace    hash.Hash // of all commands and their times
}

// with calls f with the lock.
func (n *network) with(f func()) {
	n.lock.Lock()
	defer n.lock.Unlock()
	f()
}

func (n *network) begin(f *Fault) { n.with(func() { n.active = append(n.active, f) }) }

func (n *network) end(f *Fault) {
	n.with(func() { n.active = slices.DeleteFunc(n.active, func(g *Fault) bool { return f == g }) })
}

// during returns a fault of a kind that concerns a replica now; nil if there is none. The caller has the lock.
func (n *network) during(what string, replica int) *Fault {
	for _, f := range n.active {
		if f.What == what && (f.Replica < 0 || f.Replica == replica) {
			return f
		}
	}
	return nil
}

var errUnreachable = errors.New("the simulated server can't be reached")

// passable returns when nothing keeps a replica from the store, or ctx ends. It returns false if ctx has ended or the
// node is dead.
func (n *network) passable(ctx context.Context, of *node) bool {
	for {
		var closed, dead bool
		n.with(func() { closed, dead = n.during(Cut, of.replica) != nil, of.dead })
		if dead || ctx.Err() != nil {
			return false
		}
		if !closed {
			return true
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Dial implements [mongosim.Gate].
func (n *network) Dial(ctx context.Context, client string) error {
	var of *node
	down := false
	n.with(func() {
		of = n.nodes[client]
		down = n.during(Down, of.replica) != nil
	})
	of.standStill()
	if of.isDead() {
		<-ctx.Done() // sooner, and the driver would try again at once, for as long as it may
		return errUnreachable
	}
	if down || !n.passable(ctx, of) {
		time.Sleep(failing)
		return errUnreachable
	}
	return nil
}

// writes are the commands that change documents.
var writes = []string{"insert", "update", "delete", "findAndModify"}

// failing is the time that it takes until a connection is refused or cut.
const failing = 10 * time.Millisecond

// Command implements [mongosim.Gate].
func (n *network) Command(client, name, collection string) (fate mongosim.Fate) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.commands++
	fmt.Fprintln(n.trace, time.Now().UnixNano(), client, name, collection)
	of := n.nodes[client]
	// Even a failure takes time: the driver tries again at once, for as long as it may.
	never := func() bool { time.Sleep(failing); return false }
	if of.dead || n.during(Down, of.replica) != nil {
		return mongosim.Fate{Request: never}
	}
	there, back := n.latency(of.replica), n.latency(of.replica)
	loseRequest, loseAnswer := false, false
	if n.during(Lossy, of.replica) != nil {
		loseRequest, loseAnswer = n.random.IntN(12) == 0, n.random.IntN(8) == 0
	}
	write := slices.Contains(writes, name)
	if write && n.during(ReadOnly, of.replica) != nil {
		fate.Code = mongosim.CodeNotPrimary
	}
	if write && n.during(Full, of.replica) != nil {
		fate.Code = mongosim.CodeOutOfDisk
	}
	if n.interleaved && n.random.IntN(2) == 0 {
		fate.Yield = func() {
			var pause time.Duration
			n.with(func() { pause = time.Duration(n.random.IntN(4000)) * time.Microsecond })
			time.Sleep(pause)
		}
	}
	dies, halts := false, time.Duration(0)
	if of.countdown > 0 && of.counts(name, collection) {
		if of.countdown--; of.countdown == 0 {
			switch {
			case of.stall == 0:
				dies = true
			case of.after:
				halts = of.stall
			default:
				of.stalledUntil = later(of.stalledUntil, time.Now().Add(of.stall))
			}
		}
	}
	if dies && !of.after {
		return mongosim.Fate{Request: func() bool { of.die(); return never() }}
	}
	if write && n.during(Lossy, of.replica) != nil && n.random.IntN(24) == 0 { // it comes long after its time
		there += time.Duration(n.random.IntN(60)) * time.Second
	}
	fate.Request = func() bool {
		of.standStill()
		time.Sleep(there)
		return !loseRequest && n.passable(context.Background(), of)
	}
	fate.Answer = func() bool {
		if dies {
			of.die()
		}
		time.Sleep(back)
		of.standStill()
		if halts > 0 { // once it has the answer
			n.with(func() { of.stalledUntil = later(of.stalledUntil, time.Now().Add(halts)) })
		}
		return !loseAnswer && n.passable(context.Background(), of)
	}
	return fate
}

// latency returns the time that a message is under way.
func (n *network) latency(replica int) time.Duration {
	d := time.Duration(100+n.random.IntN(2000)) * time.Microsecond
	switch {
	case n.during(Slow, replica) != nil && n.random.IntN(2) == 0:
		d += time.Duration(n.random.IntN(4000)) * time.Millisecond
	case n.during(Lossy, replica) != nil && n.random.IntN(8) == 0:
		d += time.Duration(n.random.IntN(15000)) * time.Millisecond
	case n.random.IntN(100) == 0:
		d += time.Duration(n.random.IntN(200)) * time.Millisecond
	}
	return d
}
