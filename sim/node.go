package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store/bounded"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/groupcommit"
	"github.com/carillon-scheduler/carillon/store/mongodb"
)

// The options of the replicas. The times are shorter than the defaults, so that more happens in a run.
const (
	Lease           = 20 * time.Second
	callbackTimeout = 8 * time.Second
	slots           = 16
	// settles is the longest time until outcomes are written once the store is well: that of a call that was given to it
	// before, and the pauses between tries.
	settles = 12 * time.Second
)

// node is one life of a replica: from a start to a crash or to the end.
type node struct {
	*world
	replica int
	name    string
	clock   *wall

	// Guarded by the network's lock.
	dead         bool
	countdown    int           // commands until it dies or stands still; 0 for never
	writes       bool          // only those count that change something
	counted      string        // only these count; empty for all
	after        bool          // the last of them takes effect
	stall        time.Duration // how long it then stands still; 0 if it dies
	stalledUntil time.Time
	handler      http.Handler // nil until it serves

	cancel context.CancelFunc
	done   chan struct{}
}

// start starts a replica.
func (w *world) start(replica, life int) *node {
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{
		world: w, replica: replica, name: fmt.Sprintf("r%d.%d", replica, life), clock: w.clocks[replica],
		cancel: cancel, done: make(chan struct{}),
	}
	w.net.with(func() { w.net.nodes[n.name] = n })
	go func() {
		defer close(n.done)
		n.live(ctx)
	}()
	return n
}

// count has a fault come by its count of commands. The caller has the network's lock.
func (n *node) count(f *Fault, stall time.Duration) {
	n.countdown, n.writes, n.counted, n.after, n.stall = f.N, f.Writes, f.Of, f.After, stall
}

// counts reports whether a command counts until a fault comes. The caller has the network's lock.
func (n *node) counts(name, collection string) bool {
	return name != "hello" && (!n.writes || slices.Contains(writes, name)) &&
		(n.counted == "" || n.counted == name+" "+collection)
}

// now is the clock of the replica. A replica that stands still does not read it.
func (n *node) now() time.Time {
	n.standStill()
	return n.clock.now()
}

// standStill returns when the replica does not stand still.
func (n *node) standStill() {
	for {
		var until time.Time
		n.net.with(func() { until = n.stalledUntil })
		left := time.Until(until)
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// die ends the replica as kill -9 does: nothing that it still does has an effect. Its goroutines are then ended.
func (n *node) die() {
	was := false
	n.net.with(func() {
		was = n.dead
		n.dead, n.handler, n.stalledUntil = true, nil, time.Time{}
	})
	if !was {
		n.record.Note("replica %d dies", n.replica)
		n.record.Trouble(Crash, n.replica, time.Now(), time.Now().Add(Lease)) // as long as its claims last
		n.server.Cut(n.name)
		n.cancel()
	}
}

func (n *node) isDead() (dead bool) {
	n.net.with(func() { dead = n.dead })
	return dead
}

// live opens the store and runs the replica until ctx ends.
func (n *node) live(ctx context.Context) {
	s := n.open(ctx)
	if s == nil {
		return
	}
	defer func() {
		// While a connection is in use, the driver's Disconnect is busy with asking whether it still is, and no virtual
		// time passes. So all commands end first: none takes longer than this.
		n.net.with(func() { n.dead = true })
		n.server.Cut(n.name)
		time.Sleep(70 * time.Second)
		_ = s.Close()
	}()
	log := slog.New(slog.DiscardHandler)
	theirs := &clock.Clock{}
	jobs := theirs.Watch(s)
	_, _ = jobs.Now(ctx)
	recorded := history.NewWriter(history.Config{Records: jobs, Policy: history.Policy{Keep: time.Hour}, Now: n.now})
	defer func() { _ = recorded.Close() }()

	cfg := dispatcher.Defaults
	hooks := n.webhooks()
	defer hooks.end()
	cfg.Store, cfg.Callbacks = jobs, callbacks.NewRegistry(&sender{n}, hooks.sender)
	cfg.Now, cfg.Logger, cfg.History = n.now, log, recorded
	cfg.Lease, cfg.CallbackTimeout, cfg.Concurrency = Lease, callbackTimeout, slots
	cfg.Early = n.plan.Early.D()
	cfg.ShutdownTimeout = 2 * time.Second
	cfg.Destinations = destinations.Policy{
		SlowAfter: 250 * time.Millisecond, Patience: 100 * time.Millisecond,
		Failures: 20, Probe: 2 * time.Second, LongestProbe: 10 * time.Second,
	}
	d, err := dispatcher.New(cfg)
	if err != nil {
		panic(err)
	}
	records := bounded.Records(jobs)
	own := limits.NewOwn(records, log)
	defer func() { _ = own.Close() }()
	limiter := limits.New(limits.Config{Own: own, Count: jobs})
	defer func() { _ = limiter.Close() }()
	keys := access.NewKeys(records)
	defer func() { _ = keys.Close() }()
	handler := handlers.New(handlers.Config{
		Store:        bounded.Jobs(groupcommit.New(jobs, 4)),
		Inspector:    jobs,
		Records:      records,
		Limiter:      limiter,
		OwnLimits:    own,
		Keys:         keys,
		Auth:         operators{keys},
		Callbacks:    cfg.Callbacks,
		PrioritiesOf: d.Priorities,
		Rate:         d.Rate,
		Wake:         d.Wake,
		WakeExpander: d.WakeExpander,
		Ready:        func(context.Context) error { return d.Ready() },
		Limits:       job.Limits{Instants: 1000, Payload: 1 << 16},
		Expansion:    cfg.Expansion(),
		MaxBody:      1 << 20,
		Retain:       cfg.Retain,
		Early:        cfg.Early,
		Clock:        theirs,
		Now:          n.now,
		Logger:       log,
		History:      recorded,
	})
	n.net.with(func() {
		if !n.dead {
			n.handler = handler
		}
	})
	_ = d.Run(ctx)
	n.net.with(func() { n.handler = nil })
}

// operatorToken is the token of the operator, who needs no key of the store.
const operatorToken = "operator"

// operators lets the operator do everything, and asks the store's keys about all other callers.
type operators struct{ *access.Keys }

// Authenticate implements [access.Authenticator].
func (o operators) Authenticate(ctx context.Context, token string, now time.Time) (access.Principal, error) {
	if token == operatorToken {
		return access.Anyone(), nil
	}
	return o.Keys.Authenticate(ctx, token, now)
}

// Knows implements [access.Authenticator].
func (o operators) Knows(token string, now time.Time) bool {
	return token == operatorToken || o.Keys.Knows(token, now)
}

// open opens the store, and tries until ctx ends.
func (n *node) open(ctx context.Context) *mongodb.Store {
	for ctx.Err() == nil {
		s, err := mongodb.OpenThrough(ctx, mongosim.URL, n.server.Dialer(n.name))
		if err == nil {
			return s
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// received is the connection of a request that waited while its replica stood still.
type received struct {
	net.Conn
	at time.Time
}

// SinceReceived returns the time since the request arrived at the replica's machine.
func (r received) SinceReceived() time.Duration { return time.Since(r.at) }
