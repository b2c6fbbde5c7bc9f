// Package chaos runs the built program, several replicas of it on a real store, and makes faults happen around them:
// processes are killed and stopped, clocks are set, requests to the store and its answers are lost, the store restarts,
// its disk is full. Clients submit and change jobs meanwhile. Their answers and the deliveries that receivers saw are a
// history, which package checker judges. A seed makes a plan; but processes and networks are real, so the same plan
// gives another history each time.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// The kinds of faults. The checker knows those names that the simulation has too.
const (
	Crash     = "crash"      // the replica's process is killed, and starts again at the end
	Stop      = "stop"       // the replica's process is asked to end, by SIGTERM, and starts again at the end
	Stall     = "stall"      // the replica's process is stopped
	Cut       = "cut"        // connections between the replica and the store are closed, and none is made
	Hang      = "hang"       // nothing passes between the replica and the store, and nobody is told
	Lossy     = "lossy"      // some requests to the store and some answers are lost, and the connection with them
	Slow      = "slow"       // requests to the store and answers take long
	StoreKill = "store-kill" // the store's server is killed, and starts again at the end
	StoreStop = "store-stop" // the same, but it stops in good order
	Full      = "full"       // the store's disk is full
	Step      = "step"       // the replica's clock is set by By, and back at the end
	Receivers = "receivers"  // receivers answer late, wrongly, or never
)

// World says which faults are possible.
type World struct {
	// Relay is set if there is a network between replicas and the store.
	Relay bool
	// Server is set if the store's server can be stopped.
	Server bool
	// Disk is set if the store's disk can be filled.
	Disk bool
	// Clocks is set if clocks can be set.
	Clocks bool
	// Keys is the largest number of keys of a plan, but for one in each round; zero for no bound.
	Keys int
}

// Fault is a fault, by its times since the beginning. Replica is -1 for all.
type Fault struct {
	What    string
	At, For time.Duration
	Replica int
	// By is the step of a clock.
	By time.Duration
}

// String shows a fault in a line.
func (f Fault) String() string {
	s := fmt.Sprintf("%7.1fs  %s for %s", f.At.Seconds(), f.What, f.For.Round(100*time.Millisecond))
	if f.Replica >= 0 {
		s += fmt.Sprintf(" at replica %d", f.Replica)
	}
	if f.What == Step {
		s += fmt.Sprintf(" by %s", f.By)
	}
	return s
}

// Op is a client's operation, by its time since the beginning.
type Op struct {
	At      time.Duration
	Kind    checker.Kind
	Key     string
	Replica int
	// Match makes it a change of the version that the client has just read, if it has read one.
	Match bool
	// Prefix makes a cancellation one of all jobs whose keys begin with it, as the key does.
	Prefix string
	// N is the payload of a put or an amendment.
	N int
	// Instants are times since the beginning; Every and End belong to a recurring schedule.
	Instants   []time.Duration
	Every, End time.Duration
	Attempts   int
	CatchUp    string
	// Past is the treatment of instants that have passed; empty for the default.
	Past string
	// Steps has the instants submitted as the steps of a sequence. Wait is the delay of a job that has no instants, and
	// Deadline that of its occurrences.
	Steps          bool
	Wait, Deadline time.Duration
	// Items are the puts of a batch.
	Items []Op
	// Patience is how long the client waits for the answer.
	Patience time.Duration
	// Again is how often it sends the same once more, while it does not know the outcome.
	Again int
}

// Plan is all that is decided before a run.
type Plan struct {
	Seed     uint64
	Replicas int
	// Skew are the differences of the replicas' clocks from the true time.
	Skew []time.Duration
	// Until is the time at which the last fault begins.
	Until  time.Duration
	Ops    []Op
	Faults []Fault
}

// round is the time in which a set of keys is used. Histories of many keys with few operations are judged sooner than
// those of few keys with many.
const round = 20 * time.Second

// grid is the distance of the times that have instants, so that definitions have some in common.
const grid = time.Second

// largestStep is that of a clock.
const largestStep = 10 * time.Second

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64, length time.Duration, w World) *Plan {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // it must be repeatable
	p := &Plan{Seed: seed, Replicas: 2 + r.IntN(2), Until: length}
	for range p.Replicas {
		skew := time.Duration(0)
		if w.Clocks && w.Relay && r.IntN(3) == 0 { // else they are on one machine
			skew = upTo(r, 4*time.Second) - 2*time.Second
		}
		p.Skew = append(p.Skew, skew)
	}
	n, rounds := 1, int((length+round-1)/round)
	for i := range rounds {
		begin, size := time.Duration(i)*round, 5+r.IntN(5)
		if w.Keys > 0 { // the same share of them in each round
			size = min(size, max(1, w.Keys*(i+1)/rounds-w.Keys*i/rounds))
		}
		var keys []string
		for key := range size {
			keys = append(keys, fmt.Sprintf("r%03d%c", i, 'a'+key))
		}
		for _, key := range keys {
			p.addOps(r, begin, key, keys, &n)
		}
	}
	slices.SortStableFunc(p.Ops, func(a, b Op) int { return int(a.At - b.At) })
	p.addFaults(r, w)
	return p
}

func upTo(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(d/time.Millisecond)+1)) * time.Millisecond
}

// addOps adds the operations on a key, which are sometimes about others too.
func (p *Plan) addOps(r *rand.Rand, begin time.Duration, key string, keys []string, n *int) {
	kinds := []struct {
		kind  checker.Kind
		share int
	}{
		{checker.Put, 26}, {checker.Batch, 4}, {checker.Create, 6}, {checker.Replace, 6}, {checker.Amend, 10},
		{checker.Cancel, 12}, {checker.Pause, 6}, {checker.Resume, 8}, {checker.Trigger, 6}, {checker.Redrive, 5},
		{checker.Discard, 4}, {checker.Get, 7},
	}
	for i := range 4 + r.IntN(9) {
		o := Op{
			At: begin + upTo(r, round-time.Second), Key: key, Replica: r.IntN(p.Replicas), Attempts: 1 + r.IntN(4),
			Patience: 45 * time.Second, Kind: checker.Put,
		}
		if i == 0 {
			o.At = begin + upTo(r, time.Second) // so that most keys have a job soon
		} else {
			draw := r.IntN(100)
			for _, k := range kinds {
				if draw -= k.share; draw < 0 {
					o.Kind = k.kind
					break
				}
			}
		}
		switch o.Kind {
		case checker.Put, checker.Create, checker.Replace, checker.Amend:
			define(r, &o, n)
		case checker.Batch:
			for _, other := range keys {
				if item := o; other == key || r.IntN(3) == 0 {
					item.Kind, item.Key = checker.Put, other
					define(r, &item, n)
					o.Items = append(o.Items, item)
				}
			}
		default:
		}
		switch o.Kind {
		case checker.Put, checker.Replace, checker.Amend, checker.Cancel:
			if o.Match = r.IntN(5) == 0; o.Kind == checker.Cancel && !o.Match && r.IntN(5) == 0 {
				o.Prefix = key[:len(key)-1] // those of its round
			}
		default:
		}
		if r.IntN(8) == 0 { // the answer is lost to it
			o.Patience = time.Millisecond + upTo(r, 30*time.Millisecond)
		}
		o.Again = r.IntN(3)
		p.Ops = append(p.Ops, o)
	}
}

// define gives a put, a creation or an amendment its payload, and its schedule.
func define(r *rand.Rand, o *Op, n *int) {
	o.N = *n
	if *n++; o.Kind == checker.Amend {
		return
	}
	if r.IntN(5) == 0 {
		o.Deadline = upTo(r, 8*time.Second) + time.Second
	}
	switch draw := r.IntN(12); {
	case draw < 4:
		o.Every = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}[r.IntN(3)]
		o.End = o.At + 5*time.Second + upTo(r, 25*time.Second)
		o.CatchUp = []string{"all", "all", "latest", "none"}[r.IntN(4)]
		return
	case draw == 4:
		o.Wait = upTo(r, 12*time.Second) + time.Millisecond
		return
	case draw < 7:
		o.Steps = true
	}
	for range 1 + r.IntN(6) {
		o.Instants = append(o.Instants, (o.At+upTo(r, 12*time.Second)).Truncate(grid)+grid)
	}
	if r.IntN(4) == 0 {
		for range r.IntN(4) { // that have passed
			o.Instants = append(o.Instants, (o.At - upTo(r, 12*time.Second)).Truncate(grid))
		}
		o.Past = []string{"", "", "fire", "fire", "skip", "reject"}[r.IntN(6)]
	}
	slices.Sort(o.Instants)
	o.Instants = slices.Compact(o.Instants)
}

// addFaults adds faults that the world can make. At most one at a time is about all replicas.
func (p *Plan) addFaults(r *rand.Rand, w World) {
	kinds := []string{Crash, Crash, Stop, Stall, Stall, Receivers}
	if w.Relay {
		kinds = append(kinds, Cut, Hang, Lossy, Lossy, Lossy, Slow)
	}
	if w.Server {
		kinds = append(kinds, StoreKill, StoreKill, StoreStop)
	}
	if w.Disk {
		kinds = append(kinds, Full, Full)
	}
	if w.Clocks {
		kinds = append(kinds, Step, Step)
	}
	var everywhere time.Duration // the end of the last fault that was about all
	busy := make([]time.Duration, p.Replicas)
	for at := 3*time.Second + upTo(r, 3*time.Second); at < p.Until; at += time.Second + upTo(r, 5*time.Second) {
		if r.IntN(2) == 0 { // while something is being delivered
			at = at.Truncate(grid) + grid + 5*time.Millisecond + upTo(r, 100*time.Millisecond)
		}
		f := Fault{What: kinds[r.IntN(len(kinds))], At: at, Replica: r.IntN(p.Replicas)}
		f.For = 200*time.Millisecond + upTo(r, 6*time.Second)
		switch f.What {
		case StoreKill, StoreStop, Full, Receivers:
			if f.Replica = -1; at < everywhere {
				continue
			}
			everywhere = at + f.For + 2*time.Second
		case Step:
			f.By = upTo(r, 2*largestStep) - largestStep
			f.For *= 3
			if w.Relay {
				break
			}
			// All are on one machine, whose clock it is, and the store's. Two steps within a callback's time may make a lease
			// end before its callback.
			if f.Replica = -1; at < everywhere {
				continue
			}
			everywhere = at + f.For + callbackTimeout + 2*time.Second
		case Stall:
			if r.IntN(4) == 0 {
				f.For += Lease
			}
		default:
		}
		if f.Replica >= 0 { // a replica that is stopped can't be killed, and the like
			if at < busy[f.Replica] {
				continue
			}
			busy[f.Replica] = at + f.For + time.Second
		}
		p.Faults = append(p.Faults, f)
	}
}
