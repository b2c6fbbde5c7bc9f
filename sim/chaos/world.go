package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

// The options of the replicas. The times are shorter than the defaults, so that more happens in a run.
const (
	Lease           = 20 * time.Second
	callbackTimeout = 8 * time.Second
	shutdown        = 5 * time.Second
	slots           = 16
	// settles is the longest time until outcomes are written once the store is well: that of a call that was given to it
	// before, and the pauses between tries.
	settles = 12 * time.Second
	// link is the longest time that a request is under way between a client and a replica.
	link = 4 * time.Second
	// within is the time in which a change takes effect, or never, as docs/guarantees.md says.
	within = 30 * time.Second
	// settling is the longest time after the faults in which everything due must be done. It exceeds a lease and the
	// pauses of retries and circuits.
	settling = 2 * time.Minute
	// ferretKeys is the largest number of keys on FerretDB, which stands for MongoDB. It decodes a whole collection for
	// nearly each command, so it gets slower with each key that ever had a job, until nothing is done in time any more. So
	// an hour has as many operations as some ten minutes on another store, and all its faults.
	ferretKeys = 200
)

// Options are those of a run.
type Options struct {
	// Program is the path of the built service.
	Program string
	// Settable is set if the program reads how far its clock is set from the file that [ClockVariable] names.
	Settable bool
	// Store is the store's address. It must be empty, and belongs to the run.
	Store string
	// Control is the path of a program that stops, starts and kills the store's server, by these words; empty for none.
	Control string
	// Disk is a folder on a disk of its own that has the store; empty for none.
	Disk string
	// Length is how long there are faults.
	Length time.Duration
	Seed   uint64
	// The plan and the findings are printed to Out.
	Out io.Writer
}

// world is a run under way.
type world struct {
	o        Options
	plan     *Plan
	target   string // the address of the store's server; empty without a network
	folder   string
	replicas []*replica

	record *record.Record

	lock   sync.Mutex
	random *rand.Rand
	faults []string // those besides the guarantees that the checker judges
	calm   bool
	sick   int // receivers' faults of this moment

	// younger is how much later than it came a request may seem to have come: the store's clock was set meanwhile.
	younger time.Duration
}

// Result is the outcome of a run.
type Result struct {
	Plan    *Plan
	History checker.History
	Lines   []record.Line // about the world
	// Faults are those besides broken guarantees, such as a replica that ended by itself.
	Faults []string
	// Folder has the logs of the replicas.
	Folder string
}

// Run runs the plan of a seed. An error says why it could not be run. The caller removes the folder.
func Run(ctx context.Context, o Options) (*Result, error) {
	w := &world{o: o, random: random(o.Seed)}
	if u, err := storeurl.Parse(o.Store, "mongodb", "postgres", "redis"); err == nil {
		w.target = u.Hosts()[0]
	}
	h := checker.History{
		Lease: Lease, CallbackTimeout: callbackTimeout, Within: within, Link: link, Slots: slots, Settles: settles,
		CountsApart: strings.HasPrefix(o.Store, "mongodb"),
	}
	if w.target != "" {
		h.ClockBound = min(Lease-callbackTimeout, Lease/2) / 2
	} else if o.Settable { // SQLite has the replicas' clock, so it is never found wrong, and a request's time ends by it
		h.Within += largestStep
		w.younger = largestStep
	}
	w.record = record.New(h)
	of := World{Relay: w.target != "", Server: o.Control != "", Disk: o.Disk != "", Clocks: o.Settable}
	if h.CountsApart && o.Control != "" { // a server without a control is the caller's own MongoDB
		of.Keys = ferretKeys
	}
	w.plan = NewPlan(o.Seed, o.Length, of)
	for _, f := range w.plan.Faults {
		_, _ = fmt.Fprintln(o.Out, f)
	}
	var err error
	if w.folder, err = os.MkdirTemp("", "carillon-chaos-"); err != nil {
		return nil, err
	}
	defer func() {
		for _, r := range w.replicas {
			r.close()
		}
	}()
	result := func() *Result {
		w.lock.Lock()
		defer w.lock.Unlock()
		history, lines := w.record.History()
		unheard(&history)
		return &Result{w.plan, history, lines, w.faults, w.folder}
	}
	for i := range w.plan.Replicas {
		r, err := w.newReplica(ctx, i)
		if r != nil {
			w.replicas = append(w.replicas, r)
		}
		if err != nil {
			return result(), err
		}
	}
	if err := w.serving(ctx); err != nil {
		return result(), err
	}
	w.record.Begin(time.Now().Truncate(time.Second))
	var running sync.WaitGroup
	for i := range w.plan.Ops {
		running.Go(func() { w.client(ctx, &w.plan.Ops[i]) })
	}
	for i := range w.plan.Faults {
		running.Go(func() { w.happen(ctx, &w.plan.Faults[i]) })
	}
	running.Wait()
	if err := ctx.Err(); err != nil {
		return result(), err
	}
	w.settle(ctx)
	return result(), ctx.Err()
}

// unheard takes back that replicas were told answers that came while they stood still, or just before: these may wait
// unread until the callback's time is over.
func unheard(h *checker.History) {
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		d.Told = d.Told && !slices.ContainsFunc(h.Troubles, func(t checker.Trouble) bool {
			return t.What == Stall && (t.Replica < 0 || t.Replica == d.Replica) &&
				d.Ended.After(t.From.Add(-time.Second)) && d.Ended.Before(t.To)
		})
	}
}

// serving returns when all replicas serve.
func (w *world) serving(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; sleep(ctx, 50*time.Millisecond) {
		if f := record.Read(len(w.replicas), nil, w.get); record.Quiet(&f) {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.New("the replicas do not become ready; their logs are in " + w.folder)
		}
	}
}

// happen makes a fault.
func (w *world) happen(ctx context.Context, f *Fault) {
	sleep(ctx, time.Until(w.record.Begun().Add(f.At)))
	if ctx.Err() != nil {
		return
	}
	switch f.What {
	case Crash, Stop, Stall: // one may last longer than planned
		r := w.replicas[f.Replica]
		r.stopping.Lock()
		defer r.stopping.Unlock()
	default:
	}
	w.record.Note("%s begins", f)
	from, until := time.Now(), time.Time{}
	of := f.Replica
	switch f.What {
	case Crash, Stop:
		r := w.replicas[f.Replica]
		if f.What == Stop {
			r.stop()
		} else {
			r.kill()
			from = time.Now()
		}
		sleep(ctx, f.For)
		if err := r.start(ctx); err != nil {
			w.fault("replica %d can't be started: %v", f.Replica, err)
		}
		until = time.Now().Add(Lease) // as long as its claims last
	case Step:
		w.step(ctx, f)
		return
	case Stall:
		r := w.replicas[f.Replica]
		r.signal(syscall.SIGSTOP)
		sleep(ctx, f.For)
		r.signal(syscall.SIGCONT)
		if w.target == "" { // it may have had the lock of the file
			of = -1
		}
	case Cut, Hang, Lossy, Slow:
		r := w.replicas[f.Replica].relay
		r.begin(f.What)
		sleep(ctx, f.For)
		r.end(f.What)
	case StoreKill, StoreStop:
		w.control(strings.TrimPrefix(f.What, "store-"))
		sleep(ctx, f.For)
		w.control("start")
	case Full:
		remove, err := fill(w.o.Disk)
		if err == nil {
			sleep(ctx, f.For)
			err = remove()
		}
		if w.o.Control != "" { // a server may end without space
			w.control("start")
		}
		if err != nil {
			w.fault("the disk can't be filled: %v", err)
		}
	case Receivers:
		w.with(func() { w.sick++ })
		sleep(ctx, f.For)
		w.with(func() { w.sick-- })
	}
	if until.IsZero() {
		until = time.Now()
	}
	w.record.Trouble(f.What, of, from, until)
	w.record.Note("%s ends", f)
}

// step sets the clock of a replica, or of all, which is one, and back at the end.
func (w *world) step(ctx context.Context, f *Fault) {
	replicas := w.replicas
	if f.Replica >= 0 {
		replicas = replicas[f.Replica : f.Replica+1]
	}
	from := time.Now()
	err := replicas[0].clock.step(f.By)
	if !replicas[0].shows(ctx) {
		w.fault("the clock of replica %d does not show that it is set", replicas[0].index)
	}
	sleep(ctx, time.Until(from.Add(f.For)))
	if err = errors.Join(err, replicas[0].clock.step(-f.By)); err != nil {
		w.fault("a clock can't be set: %v", err)
	}
	for _, r := range replicas {
		w.record.Trouble(f.What, r.index, from, time.Now())
	}
	w.record.Note("%s ends", f)
}

func (w *world) with(f func()) {
	w.lock.Lock()
	defer w.lock.Unlock()
	f()
}

// fault notes an event that must not be.
func (w *world) fault(format string, args ...any) {
	w.record.Note("wrong: "+format, args...)
	w.with(func() { w.faults = append(w.faults, fmt.Sprintf(format, args...)) })
}

// control acts on the store's server. A server that was killed may not start at once, while parts of it still end.
func (w *world) control(action string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for try := 1; ; try++ {
		//nolint:gosec // the caller's program
		out, err := exec.CommandContext(ctx, w.o.Control, action).CombinedOutput()
		switch {
		case err == nil:
			return
		case try == 10 || ctx.Err() != nil:
			w.fault("%s %s: %v\n%s", filepath.Base(w.o.Control), action, err, out)
			return
		}
		w.record.Note("%s %s fails: %v", filepath.Base(w.o.Control), action, err)
		sleep(ctx, time.Second)
	}
}

// settle waits until everything due is done, or the time for it is over, and reads the final state.
func (w *world) settle(ctx context.Context) {
	calm := time.Now()
	w.with(func() { w.calm = true })
	w.record.Calm()
	w.record.Note("calm")
	for {
		final := record.Read(len(w.replicas), w.keys(), w.get)
		// The deliveries that are due until the end are looked at, for as long as it takes at most.
		since := time.Since(calm)
		if record.Quiet(&final) && since > Lease || since > settling || ctx.Err() != nil {
			w.record.End(final, calm)
			return
		}
		sleep(ctx, time.Second)
	}
}
