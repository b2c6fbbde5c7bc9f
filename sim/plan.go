// Package sim runs the whole program in a simulated world: real replicas (the HTTP API, the dispatcher, history), the
// real store for MongoDB on a simulated server, on virtual time in one process. A seed makes a plan: the operations
// of clients, and the faults. Running a plan gives a history, which package checker judges.
//
// A run needs a bubble of testing/synctest, so the package is run by its test and by the program carillon-sim.
package sim

import (
	"fmt"
	"maps"
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
	// Early is the window before their instants in which occurrences may fire.
	Early Span `json:",omitzero"`
	// Until is the time at which the faults end. Expires is when the key of the temporary caller expires; 0 for never.
	Until   Span
	Expires Span `json:",omitzero"`
	Ops     []Op
	Faults  []Fault
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
	// Tenant is the job's; empty for the default. Caller is the client that asks; empty for the operator.
	Tenant string `json:",omitzero"`
	Caller string `json:",omitzero"`
	// N is the payload of a put or an amendment.
	N int `json:",omitzero"`
	// Instants are times from the beginning; Every and End belong to a recurring schedule.
	Instants   []Span `json:",omitzero"`
	Every, End Span   `json:",omitzero"`
	CatchUp    string `json:",omitzero"`
	// Attempts is the most of an occurrence; an amendment without it leaves the policy alone.
	Attempts int `json:",omitzero"`
	// Initial and Longest bound the pauses between attempts, which grow by Factor; zero as in [record.Retry].
	Initial, Longest Span `json:",omitzero"`
	Factor           int  `json:",omitzero"`
	// Past is the treatment of instants that have passed when the job is put.
	Past string `json:",omitzero"`
	// Steps has the instants submitted as the steps of a sequence. Wait is the delay of a job that has no instants, and
	// Deadline that of its occurrences.
	Steps          bool `json:",omitzero"`
	Wait, Deadline Span `json:",omitzero"`
	// Spread is the window over which the occurrences of a put, or of a preview, are moved.
	Spread Span `json:",omitzero"`
	// Items are the puts of a batch.
	Items []Op `json:",omitzero"`
	// To is the receiver of a put's deliveries, the URL of a webhook or a name; empty for one of the key's own. Takes is
	// the time that it needs for each;
	// 0 if receivers behave at random.
	To    string `json:",omitzero"`
	Takes Span   `json:",omitzero"`
	// Fails is the number of attempts at each occurrence that the receiver refuses, before it takes one at once.
	Fails int `json:",omitzero"`
	// Paused, Jobs and InFlight are the settings and the quota that an operator gives to a tenant.
	Paused         bool `json:",omitzero"`
	Jobs, InFlight int  `json:",omitzero"`
	// Former is how many secrets of the caller's key are newer than the one that it shows, if there are so many. Overlap
	// is that of a rotation.
	Former  int  `json:",omitzero"`
	Overlap Span `json:",omitzero"`
	// Match makes it a change of the version that the client has just read, if it has read one.
	Match bool `json:",omitzero"`
	// Prefix makes a cancellation one of all the tenant's jobs whose keys begin with it, as the key does.
	Prefix string `json:",omitzero"`
	// Twice is the time after which the request comes a second time, to the next replica; 0 for never.
	Twice Span `json:",omitzero"`
	// Delay is the time that the request is under way. Lost requests and answers never arrive.
	Delay                  Span `json:",omitzero"`
	LoseRequest, LoseReply bool `json:",omitzero"`
	// Again is how often the client sends the same once more, while it does not know the outcome.
	Again int `json:",omitzero"`
}

// The kinds of faults.
const (
	Crash     = "crash"     // the replica dies at its Nth command, before or after it takes effect; restarts after For
	Stop      = "stop"      // the replica ends in good order, and starts again after For
	Stall     = "stall"     // the replica stands still, from its Nth command on if N is not 0
	Cut       = "cut"       // nothing passes between the replica and the store
	Lossy     = "lossy"     // some requests to the store and answers are lost or delayed
	Slow      = "slow"      // the store answers late
	Down      = "down"      // the store is away
	ReadOnly  = "read-only" // the store refuses writes
	Full      = "full"      // the store's disk is full
	Step      = "step"      // the replica's clock is set by By, and back at the end
	Drift     = "drift"     // the replica's clock goes wrong by By per second, and is set right at the end
	Receivers = "receivers" // receivers answer late, wrongly, or never
)

// Fault is a fault of the world. Replica is -1 for all.
type Fault struct {
	What    string
	At, For Span
	Replica int
	// N counts commands until a crash or a stall, or only those that change something, or those that Of names, such as
	// "find jobs"; After has the last of them take effect, and a replica that stalls has its answer.
	N      int    `json:",omitzero"`
	Writes bool   `json:",omitzero"`
	Of     string `json:",omitzero"`
	After  bool   `json:",omitzero"`
	// By is the step of a clock.
	By Span `json:",omitzero"`
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s for %s from %s", f.What, f.For.D(), f.At.D())
	if f.Replica >= 0 {
		s += fmt.Sprintf(" at replica %d", f.Replica)
	}
	if f.What == Step || f.What == Drift {
		s += fmt.Sprintf(" by %s", f.By.D())
	}
	return s
}

// NewPlan makes the plan of a seed.
func NewPlan(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	upTo := func(d time.Duration) Span { return Span(r.Int64N(int64(span(d)) + 1)) }
	p := &Plan{
		Seed: seed, Replicas: 2 + r.IntN(4), Interleaved: r.IntN(2) == 0,
		Until: span(30*time.Second) + upTo(90*time.Second),
	}
	for range p.Replicas {
		skew := Span(0)
		if r.IntN(3) == 0 {
			skew = upTo(4*time.Second) - span(2*time.Second)
		}
		p.Skew = append(p.Skew, skew)
	}
	d := drafter{Rand: r, Plan: p, keys: keys[:1+r.IntN(len(keys))]}
	if r.IntN(3) == 0 {
		d.callers = []string{second}
	}
	if r.IntN(3) == 0 {
		d.callers = slices.Sorted(maps.Keys(callers))
	}
	for range 6 + r.IntN(30) {
		d.op()
	}
	d.operators()
	if r.IntN(4) == 0 {
		d.forbidden()
	}
	if r.IntN(6) == 0 {
		d.held()
	}
	if r.IntN(4) == 0 {
		d.retried()
	}
	if r.IntN(6) == 0 {
		d.letters()
	}
	if r.IntN(4) == 0 {
		d.temporary()
	}
	d.early()
	faults := r.IntN(9)
	if r.IntN(32) == 0 {
		d.remote()
		if r.IntN(2) == 0 { // nothing but the cut keeps a replica from the store
			faults = 0
		}
	}
	if r.IntN(8) == 0 {
		d.limited()
		if r.IntN(2) == 0 { // a replica is judged only while it has no fault
			faults = 0
		}
	}
	if r.IntN(16) == 0 {
		d.backlog()
		if r.IntN(2) == 0 { // nothing but the backlog may make anything late
			faults = 0
			clear(p.Skew)
		}
	}
	if r.IntN(12) == 0 {
		d.orphaned()
		faults = 0
		if r.IntN(2) == 0 {
			clear(p.Skew)
		}
	}
	for range faults {
		d.fault()
	}
	d.moved()
	slices.SortStableFunc(p.Ops, func(a, b Op) int { return int(a.At - b.At) })
	slices.SortStableFunc(p.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}

// keys are those of the jobs that clients fight for. Those after the first two belong to the other tenant.
var keys = []string{"a", "ab", "c", "cd"}

const otherTenant = "other"

// grid is the distance of the times that have instants.
const grid = Span(2000)

// tenantOf returns the tenant of a key: one key is always that of one tenant.
func tenantOf(key string) string {
	if key >= "c" {
		return otherTenant
	}
	return ""
}

// drafter drafts operations.
type drafter struct {
	*rand.Rand
	*Plan
	keys    []string
	callers []string // besides the operator
	n       int      // the last payload
}

// caller returns a caller; empty for the operator.
func (d *drafter) caller() string {
	if len(d.callers) == 0 || d.IntN(2) == 0 {
		return ""
	}
	return d.callers[d.IntN(len(d.callers))]
}

func (d *drafter) upTo(most time.Duration) Span { return Span(d.Int64N(int64(span(most)) + 1)) }

// op adds one operation, and sometimes another one at about the same moment.
func (d *drafter) op() {
	o := Op{At: d.upTo(d.Until.D()), Key: d.keys[d.IntN(len(d.keys))], Replica: d.IntN(d.Replicas)}
	o.Tenant = tenantOf(o.Key)
	o.Kind = d.kind()
	switch o.Kind {
	case checker.Put, checker.Create, checker.Replace, checker.Amend:
		d.define(&o)
	case checker.Batch:
		for _, key := range d.keys {
			item := Op{At: o.At, Kind: checker.Put, Key: key, Tenant: tenantOf(key), Replica: o.Replica}
			if item.Tenant == o.Tenant && (key == o.Key || d.IntN(2) == 0) {
				d.define(&item)
				o.Items = append(o.Items, item)
			}
		}
	default:
	}
	o.Caller = d.caller()
	d.widen(&o)
	o.Match = o.Prefix == "" && d.matches(o.Kind)
	if d.IntN(4) == 0 {
		o.Delay = d.upTo(3 * time.Second)
	}
	switch d.IntN(12) {
	case 0:
		o.LoseRequest = true
	case 1:
		o.LoseReply = true
	case 2:
		o.Twice = d.upTo(time.Second) + 1
	}
	if d.IntN(2) == 0 {
		o.Again = 1 + d.IntN(2)
	}
	d.Ops = append(d.Ops, o)
	if d.IntN(4) == 0 {
		d.Ops = append(d.Ops, Op{
			Kind: []checker.Kind{checker.Cancel, checker.Pause, checker.Trigger, checker.Get}[d.IntN(4)],
			At:   o.At + d.upTo(40*time.Millisecond), Key: o.Key, Tenant: o.Tenant, Replica: d.IntN(d.Replicas),
		})
	}
	if d.IntN(6) == 0 { // two changes, step by step beside each other
		beside := Op{
			Kind: []checker.Kind{checker.Put, checker.Create, checker.Replace, checker.Amend, checker.Cancel}[d.IntN(5)],
			At:   o.At + o.Delay + d.upTo(6*time.Millisecond), Key: o.Key, Tenant: o.Tenant, Replica: d.IntN(d.Replicas),
		}
		if beside.Kind != checker.Cancel {
			d.define(&beside)
		}
		d.widen(&beside)
		beside.Match = beside.Prefix == "" && d.matches(beside.Kind)
		d.Ops = append(d.Ops, beside)
	}
}

// matches draws whether a change of a kind is one of the version that its client has read.
func (d *drafter) matches(kind checker.Kind) bool {
	changes := []checker.Kind{checker.Put, checker.Replace, checker.Amend, checker.Cancel}
	return d.IntN(5) == 0 && slices.Contains(changes, kind)
}

func (d *drafter) kind() checker.Kind {
	switch n := d.IntN(100); {
	case n < 26:
		return checker.Put
	case n < 32:
		return checker.Replace
	case n < 36:
		return checker.Batch
	case n < 42:
		return checker.Create
	case n < 52:
		return checker.Amend
	case n < 63:
		return checker.Cancel
	case n < 69:
		return checker.Pause
	case n < 77:
		return checker.Resume
	case n < 83:
		return checker.Trigger
	case n < 88:
		return checker.Redrive
	case n < 92:
		return checker.Discard
	default:
		return checker.Get
	}
}

// define gives a put, a creation or an amendment its payload, its retry policy, and its schedule. An amendment has no
// schedule, and in half of the cases no policy.
func (d *drafter) define(o *Op) {
	d.n++
	o.N = d.n
	if o.Kind == checker.Amend && d.IntN(2) == 0 {
		return
	}
	o.Attempts = 1 + d.IntN(4)
	if d.IntN(2) == 0 {
		d.policy(o)
	}
	if o.Kind == checker.Amend {
		return
	}
	if d.IntN(5) == 0 {
		o.Deadline = d.upTo(8*time.Second) + 1000
	}
	d.spread(o)
	switch n := d.IntN(12); {
	case n < 4:
		seconds := []int{2, 5, 10, 30}[d.IntN(4)] // the last is longer than a lease
		o.Every = span(time.Duration(seconds) * time.Second)
		o.End = o.At + d.upTo(70*time.Second) + max(o.Every, span(20*time.Second))
		o.CatchUp = []string{"all", "latest", "latest", "none"}[d.IntN(4)]
		return
	case n == 4:
		o.Wait = d.upTo(20*time.Second) + 1
		return
	case n < 7:
		o.Steps = true
	}
	// On a grid, so that definitions have instants in common.
	for range 1 + d.IntN(5) {
		o.Instants = append(o.Instants, (o.At+d.upTo(40*time.Second))/grid*grid+grid)
	}
	if d.IntN(4) == 0 {
		d.past(o)
	}
	slices.Sort(o.Instants)
	o.Instants = slices.Compact(o.Instants)
}

// past gives a put instants that have passed, and the treatment of these.
func (d *drafter) past(o *Op) {
	for range d.IntN(4) {
		o.Instants = append(o.Instants, (o.At-d.upTo(20*time.Second))/grid*grid)
	}
	o.Past = []string{"", "", "fire", "fire", "skip", "reject"}[d.IntN(6)]
}

// policy gives a put a policy of its own for the pauses between attempts.
func (d *drafter) policy(o *Op) {
	o.Initial = []Span{100, 1000, 3000}[d.IntN(3)]
	o.Longest = o.Initial * Span(1+d.IntN(3))
	o.Factor = []int{1, 2, 10, 10}[d.IntN(4)]
}
