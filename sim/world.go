package sim

import (
	"crypto/sha256"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/sim/record"
	"github.com/carillon-scheduler/carillon/store"
)

// link is the longest time that a request is under way between a client and a replica.
const link = 4 * time.Second

// prompt is the time within which few deliveries begin. A poll interval is longer: so a poll does not hide it if
// nothing else tells a replica of due deliveries.
const prompt = 600 * time.Millisecond

// takesOver returns the time within which one of some replicas claims in the place of another one that is gone. From
// four on, they take turns, and for some seconds after replicas have come or gone, their polls are not spread evenly.
func takesOver(replicas int) time.Duration {
	if replicas < 4 {
		return prompt
	}
	return 1200 * time.Millisecond
}

// world is a run under way.
type world struct {
	plan   *Plan
	record *record.Record
	net    *network
	server *mongosim.Server
	clocks []*wall
	nodes  []*node // the present life of each replica; guarded by the network's lock
	calm   bool    // guarded by the network's lock

	tenants map[string]string      // of the keys of all jobs
	made    map[string]*credential // those of callers

	lock  sync.Mutex
	lives []*node
}

// Run runs a plan, in a bubble of testing/synctest, and returns its history. The lines tell the events in the world.
func Run(p *Plan) (checker.History, []record.Line) {
	w := newWorld(p)
	for i := range p.Replicas {
		w.clocks[i].step(p.Skew[i].D())
		w.restart(i)
	}
	w.makeKeys()
	var running sync.WaitGroup
	for i := range p.Ops {
		running.Go(func() { w.client(&p.Ops[i]) })
	}
	for i := range p.Faults {
		running.Go(func() { w.fault(&p.Faults[i]) })
	}
	time.Sleep(p.Until.D())
	running.Wait()
	w.settle()
	w.end()
	return w.record.History()
}

func newWorld(p *Plan) *world {
	w := &world{
		plan: p, tenants: map[string]string{}, made: map[string]*credential{}, nodes: make([]*node, p.Replicas),
		record: record.New(checker.History{
			Lease: Lease, CallbackTimeout: callbackTimeout, Within: store.Within, Link: link, Slots: slots,
			CountsApart: true, Prompt: prompt, Settles: settles, Early: p.Early.D(),
			ClockBound:  min(Lease-callbackTimeout-p.Early.D(), Lease/2) / 2,
			Permissions: permissions(p, time.Now()), Rules: rules,
			Replicas: p.Replicas, TakesOver: takesOver(p.Replicas), Counted: countdownFor,
		}),
		net: &network{
			interleaved: p.Interleaved, random: rand.New(rand.NewPCG(p.Seed, 2)),
			nodes: map[string]*node{}, trace: sha256.New(),
		},
	}
	w.server = mongosim.New(w.net)
	for i := range p.Ops {
		for _, o := range append(p.Ops[i].Items, p.Ops[i]) {
			if o.Key != "" {
				w.tenants[o.Key] = o.Tenant
			}
		}
	}
	for range p.Replicas {
		w.clocks = append(w.clocks, &wall{})
	}
	return w
}

// at is the time of a span from the beginning.
func (w *world) at(s Span) time.Time { return w.record.Begun().Add(s.D()) }

// restart starts a replica again.
func (w *world) restart(replica int) {
	n := w.start(replica, len(w.lives))
	w.net.with(func() { w.nodes[replica] = n })
	w.lives = append(w.lives, n)
}

// present returns the present life of a replica.
func (w *world) present(replica int) (n *node) {
	w.net.with(func() { n = w.nodes[replica] })
	return n
}

// countdownFor is the time in which a replica must send the command at which it stands still.
const countdownFor = 5 * time.Second

// fault makes a fault.
func (w *world) fault(f *Fault) {
	time.Sleep(f.At.D())
	from := time.Now()
	w.record.Note("%s begins", f)
	switch f.What {
	case Crash:
		n := w.present(f.Replica)
		w.net.with(func() { n.count(f, 0) })
		time.Sleep(f.For.D())
		n.die() // unless it has died already
		w.lock.Lock()
		w.restart(f.Replica)
		w.lock.Unlock()
		w.record.Note("replica %d starts", f.Replica)
		return
	case Stop:
		w.present(f.Replica).cancel()
		time.Sleep(f.For.D())
		w.lock.Lock()
		w.restart(f.Replica)
		w.lock.Unlock()
		w.record.Note("replica %d starts", f.Replica)
		w.record.Trouble(f.What, f.Replica, from, time.Now().Add(Lease))
		return
	case Stall:
		n := w.present(f.Replica)
		if f.N > 0 {
			w.net.with(func() { n.count(f, f.For.D()) })
			time.Sleep(countdownFor)
			w.net.with(func() { n.countdown = 0 })
			break
		}
		w.net.with(func() { n.stalledUntil = later(n.stalledUntil, from.Add(f.For.D())) })
	case Step:
		w.clocks[f.Replica].step(f.By.D())
	case Drift:
		w.clocks[f.Replica].drift(f.By.D())
	case Down:
		w.net.begin(f)
		for _, n := range w.lifeOfEach() {
			w.server.Cut(n.name)
		}
	default:
		w.net.begin(f)
	}
	time.Sleep(f.For.D())
	w.net.end(f)
	switch f.What {
	case Step:
		w.clocks[f.Replica].step(-f.By.D())
	case Drift:
		w.clocks[f.Replica].drift(0)
	default:
	}
	w.record.Trouble(f.What, f.Replica, from, time.Now())
	w.record.Note("%s ends", f)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lifeOfEach returns the present lives of all replicas.
func (w *world) lifeOfEach() (all []*node) {
	w.net.with(func() { all = slices.Clone(w.nodes) })
	return all
}

// settle ends all faults, waits until nothing is left to do, or until the time is over in which everything due must be
// done, and reads the final state.
func (w *world) settle() {
	w.net.with(func() {
		w.calm, w.net.active = true, nil
		for _, n := range w.nodes {
			n.countdown = 0
		}
	})
	calm := time.Now()
	w.record.Calm()
	w.record.Note("calm")
	for _, clock := range w.clocks {
		clock.drift(0)
	}
	w.client(&Op{Kind: checker.Settings, Tenant: otherTenant, Again: 10}) // it is not paused any more
	const still = Lease + 10*time.Second
	for ; ; time.Sleep(10 * time.Second) {
		over := time.Since(calm) >= checker.Late
		if !over && min(time.Since(calm), w.record.Idle()) < still {
			continue
		}
		begun := time.Now()
		final := record.Read(w.plan.Replicas, w.keys(), w.get)
		switch quiet := record.Quiet(&final); {
		case quiet:
			w.record.End(final, begun)
		case over:
			w.record.End(final, calm.Add(10*time.Second))
			if len(final.Unready) > 0 {
				w.record.Note("goroutines:\n%s", goroutines())
			}
		default:
			continue
		}
		return
	}
}

// goroutines returns the stacks of all goroutines.
func goroutines() []byte {
	b := make([]byte, 8<<20)
	return b[:runtime.Stack(b, true)]
}

// keys returns the keys of all jobs of the plan, in order.
func (w *world) keys() (all []string) {
	for key := range w.tenants {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}

// end stops all replicas.
func (w *world) end() {
	for _, n := range w.lives {
		n.cancel()
	}
	for _, n := range w.lives {
		<-n.done
	}
	for range 600 { // messages may still be under way
		if w.server.Connections() == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	w.record.Note("%d commands to the store, digest %x", w.net.commands, w.net.trace.Sum(nil)[:8])
	time.Sleep(time.Minute) // a goroutine that is left after this is a fault, which the bubble tells
}
