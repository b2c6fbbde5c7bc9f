// Package sim runs the whole program in a simulated world: real replicas (the HTTP API, the dispatcher, history), the
// real store for MongoDB on a simulated server, on virtual time in one process. A seed makes a plan: what clients do,
// and which faults there are. Running a plan gives a history, which package checker judges.
//
// A run needs a bubble of testing/synctest, so the package is run by its test and by the program carillon-sim.
package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Plan is all that a run depends on. It is kept as JSON, so that a run can be repeated when the making of plans has
// changed.
type Plan struct {
	Seed     uint64
	Replicas int
	// Interleaved lets other commands come between the documents that one command changes.
	Interleaved bool
	// Skew are the differences of the replicas' clocks from the true time.
	Skew []Span
	// Until is the time at which the faults end.
	Until  Span
	Ops    []Op
	Faults []Fault
}

// Span is a length of time. In JSON it is a number of milliseconds.
type Span int64

// D returns a span as a duration.
func (s Span) D() time.Duration { return time.Duration(s) * time.Millisecond }

func span(d time.Duration) Span { return Span(d.Milliseconds()) }

// Op is an operation of a client.
type Op struct {
	At      Span
	Kind    checker.Kind
	Key     string
	Replica int
	// N is the payload of a put or an amendment.
	N int `json:",omitzero"`
	// Instants are times from the beginning; Every and End belong to a recurring schedule.
	Instants   []Span `json:",omitzero"`
	Every, End Span   `json:",omitzero"`
	Attempts   int    `json:",omitzero"`
	CatchUp    string `json:",omitzero"`
	// Delay is the time that the request is under way. Lost requests and answers never arrive.
	Delay                  Span `json:",omitzero"`
	LoseRequest, LoseReply bool `json:",omitzero"`
	// Again is how often the client sends the same once more, while it does not know the outcome.
	Again int `json:",omitzero"`
}

// What a fault is.
const (
	Crash     = "crash"     // the replica dies at its Nth command, before or after it takes effect, and restarts after For
	Stall     = "stall"     // the replica stands still
	Cut       = "cut"       // nothing passes between the replica and the store
	Lossy     = "lossy"     // some requests to the store and answers are lost or delayed
	Slow      = "slow"      // the store answers late
	Down      = "down"      // the store is away
	ReadOnly  = "read-only" // the store refuses writes
	Full      = "full"      // the store's disk is full
	Step      = "step"      // the replica's clock is set by By, and back at the end
	Receivers = "receivers" // receivers answer late, wrongly, or never
)

// Fault is a fault of the world. Replica is -1 for all.
type Fault struct {
	What    string
	At, For Span
	Replica int
	// N counts commands until a crash; After has the last of them take effect.
	N     int  `json:",omitzero"`
	After bool `json:",omitzero"`
	// By is the step of a clock.
	By Span `json:",omitzero"`
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s for %s from %s", f.What, f.For.D(), f.At.D())
	if f.Replica >= 0 {
		s += fmt.Sprintf(" at replica %d", f.Replica)
	}
	if f.What == Step {
		s += fmt.Sprintf(" by %s", f.By.D())
	}
	return s
}

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	upTo := func(d time.Duration) Span { return Span(r.Int64N(int64(span(d)) + 1)) }
	p := &Plan{
		Seed: seed, Replicas: 2 + r.IntN(2), Interleaved: r.IntN(2) == 0,
		Until: span(30*time.Second) + upTo(90*time.Second),
	}
	if r.IntN(8) == 0 {
		p.Replicas = 5
	}
	for range p.Replicas {
		skew := Span(0)
		if r.IntN(3) == 0 {
			skew = upTo(4*time.Second) - span(2*time.Second)
		}
		p.Skew = append(p.Skew, skew)
	}
	keys := []string{"a", "b", "c", "d"}[:1+r.IntN(4)]
	n, count := 1, 6+r.IntN(30)
	for range count {
		o := Op{
			At: upTo(p.Until.D()), Key: keys[r.IntN(len(keys))], Replica: r.IntN(p.Replicas), Attempts: 1 + r.IntN(4),
		}
		switch d := r.IntN(100); {
		case d < 34:
			o.Kind = checker.Put
		case d < 40:
			o.Kind = checker.Create
		case d < 50:
			o.Kind = checker.Amend
		case d < 62:
			o.Kind = checker.Cancel
		case d < 68:
			o.Kind = checker.Pause
		case d < 76:
			o.Kind = checker.Resume
		case d < 82:
			o.Kind = checker.Trigger
		case d < 87:
			o.Kind = checker.Redrive
		default:
			o.Kind = checker.Get
		}
		if o.Kind == checker.Put || o.Kind == checker.Create || o.Kind == checker.Amend {
			o.N = n
			n++
		}
		if o.Kind == checker.Put || o.Kind == checker.Create {
			if r.IntN(3) == 0 {
				o.Every = span([]time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second}[r.IntN(3)])
				o.End = o.At + upTo(90*time.Second) + span(20*time.Second)
				o.CatchUp = []string{"all", "all", "latest", "none"}[r.IntN(4)]
			} else {
				// On a grid, so that definitions have instants in common.
				for range 1 + r.IntN(5) {
					o.Instants = append(o.Instants, (o.At+upTo(40*time.Second))/2000*2000+2000)
				}
				slices.Sort(o.Instants)
				o.Instants = slices.Compact(o.Instants)
			}
		}
		if r.IntN(4) == 0 {
			o.Delay = upTo(3 * time.Second)
		}
		switch r.IntN(12) {
		case 0:
			o.LoseRequest = true
		case 1:
			o.LoseReply = true
		}
		if r.IntN(2) == 0 {
			o.Again = 1 + r.IntN(2)
		}
		p.Ops = append(p.Ops, o)
		if r.IntN(4) == 0 { // another one at about the same moment
			o.Kind = []checker.Kind{checker.Cancel, checker.Pause, checker.Trigger, checker.Get}[r.IntN(4)]
			o.At, o.Replica = o.At+upTo(40*time.Millisecond), r.IntN(p.Replicas)
			o.N, o.Instants, o.Every, o.End, o.Delay, o.Again = 0, nil, 0, 0, 0, 0
			p.Ops = append(p.Ops, o)
		}
	}
	slices.SortStableFunc(p.Ops, func(a, b Op) int { return int(a.At - b.At) })
	for range r.IntN(9) {
		f := Fault{At: upTo(p.Until.D()), For: upTo(12*time.Second) + 100, Replica: r.IntN(p.Replicas)}
		switch d := r.IntN(100); {
		case d < 26:
			f.What, f.N, f.After = Crash, 1+r.IntN(40), r.IntN(2) == 0
		case d < 40:
			f.What = Stall
			if r.IntN(2) == 0 {
				f.For += span(Lease)
			}
		case d < 54:
			f.What = Lossy
		case d < 64:
			f.What = Cut
		case d < 70:
			f.What, f.Replica = Slow, -1
		case d < 75:
			f.What, f.Replica = Down, -1
		case d < 78:
			f.What, f.Replica = ReadOnly, -1
		case d < 81:
			f.What, f.Replica = Full, -1
		case d < 88:
			f.What, f.By = Step, upTo(20*time.Second)-span(10*time.Second)
		default:
			f.What, f.Replica, f.For = Receivers, -1, f.For*3
		}
		p.Faults = append(p.Faults, f)
	}
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}
