//go:build services

package redis_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// changes are all that changes something for a client, and Advance and Sweep, of jobs that begin with a prefix.
type changes struct {
	prefix   string
	there    store.Put // with many occurrences
	amended  job.Revision
	tick     store.Advance
	buried   []job.ID
	redriven []job.ID
}

// newChanges makes what the changes are of.
func newChanges(t *testing.T, s store.Store, prefix string) *changes {
	t.Helper()
	c := &changes{prefix: prefix, there: put(prefix+"many", 1500)}
	expansion := job.Expansion{Horizon: 10 * time.Second, CatchUpLimit: 100}
	ticks := recurring(t, prefix+"ticks", expansion)
	dead := put(prefix+"dead", 2)
	mustPut(t, s, dead)
	claimed := claim(t, s, epoch.Add(time.Second), 100)
	settlements := acks(slices.DeleteFunc(claimed.Occurrences, func(o store.Claimed) bool { return o.Name != dead.Job.Name }))
	for i := range settlements {
		settlements[i].Outcome, settlements[i].At, settlements[i].Target = store.Bury, epoch, job.Target{Callback: dead.Job.Callback}
	}
	if err := s.Settle(t.Context(), settlements); err != nil || len(settlements) != 2 {
		t.Fatalf("buried %d, %v", len(settlements), err)
	}
	c.buried, c.redriven = []job.ID{settlements[0].ID}, []job.ID{settlements[1].ID}
	amended := put(prefix+"amended", 1)
	c.amended = amended.Job.Version
	mustPut(t, s, amended, c.there, put(prefix+"k", 2), put(prefix+"gone", 2), put(prefix+"paused", 2), ticks)
	pause(t, s, c.name("paused"), epoch)
	c.tick = advanceOf(t, s, ticks.Job.ExpandAt, expansion)
	return c
}

func (c *changes) name(key string) job.Name {
	return job.Name{Tenant: job.DefaultTenant, Key: c.prefix + key}
}

// tests are one call of each.
func (c *changes) tests() map[string]func(ctx context.Context, s store.Store) error {
	putting := func(p store.Put) func(ctx context.Context, s store.Store) error {
		return func(ctx context.Context, s store.Store) error { return s.Put(ctx, []store.Put{p})[0].Err }
	}
	counted := func(n int, err error) error {
		if err == nil && n != 1 {
			return errors.New("nothing was there to be changed")
		}
		return err
	}
	present := put(c.prefix+"present", 1)
	present.If.Present = true
	tenant := job.Tenant{Name: c.prefix, FirstSeen: epoch}
	now := epoch.Add(time.Second)
	return map[string]func(ctx context.Context, s store.Store) error{
		"a put":                    putting(put(c.prefix+"new", 1)),
		"a replacement":            putting(put(c.prefix+"k", 1)),
		"a put of many":            putting(put(c.prefix+"new many", 1500)),
		"a replacement with marks": putting(replacing(c.there, put(c.prefix+"many", 1500))),
		"a cancellation": func(ctx context.Context, s store.Store) error {
			results, err := s.Cancel(ctx, []job.Name{c.name("gone")}, store.Asked{Now: epoch})
			if err == nil {
				return counted(results[0].Cancelled+results[0].InFlight-1, nil)
			}
			return err
		},
		"an amendment": func(ctx context.Context, s store.Store) error {
			return s.Amend(ctx, store.Amendment{Name: c.name("amended"), Of: c.amended, Version: job.NewRevision(now), Now: now})
		},
		"a pause": func(ctx context.Context, s store.Store) error {
			return s.Pause(ctx, c.name("many"), job.NewRevision(now), now)
		},
		"a resumption": func(ctx context.Context, s store.Store) error {
			return s.Resume(ctx, c.name("paused"), job.NewRevision(now), now)
		},
		"a trigger": func(ctx context.Context, s store.Store) error {
			return s.Trigger(ctx, job.Occurrence{
				ID: job.OccurrenceID(c.name("many"), "", epoch, 1, ""), Name: c.name("many"), Position: 1, Timestamp: epoch, DueAt: epoch,
				Own: &job.Target{Callback: job.Callback{Type: "http", Data: []byte("{}")}},
			})
		},
		"a redrive": func(ctx context.Context, s store.Store) error {
			return counted(s.Redrive(ctx, job.DefaultTenant, c.redriven, now))
		},
		"a deletion of a dead letter": func(ctx context.Context, s store.Store) error {
			return counted(s.DeleteDeadLetters(ctx, job.DefaultTenant, c.buried))
		},
		"an advance": func(ctx context.Context, s store.Store) error { return s.Advance(ctx, []store.Advance{c.tick}) },
		"a tenant that is met": func(ctx context.Context, s store.Store) error {
			return counted(s.MeetTenants(ctx, []job.Tenant{{Name: c.prefix + "met", FirstSeen: epoch}}))
		},
		"a tenant that is set": func(ctx context.Context, s store.Store) error { return s.SetTenant(ctx, tenant) },
	}
}

// content is all that a server has.
func content(server *server) map[string]any {
	all := make(map[string]any)
	keys, _ := server.must("keys", "*").([]any)
	for _, key := range keys {
		all[key.(string)] = server.must("dump", key) //nolint:errcheck // it is one
	}
	return all
}

// TestLate: a change that reaches the server when its time is over changes nothing, though it was sent in time, and nobody
// waits for its answer any more.
func TestLate(t *testing.T) {
	server := newServer(t)
	direct := open(t, server.url)
	warm, late := newChanges(t, direct, "warm-"), newChanges(t, direct, "late-")
	for what, change := range warm.tests() { // so that the server knows the scripts, and each change is one
		before := content(server)
		if err := change(t.Context(), direct); err != nil {
			t.Fatalf("%s in time: %v", what, err)
		}
		if maps.Equal(content(server), before) {
			t.Fatalf("%s in time changes nothing", what)
		}
	}
	relay := newRelay(t, server)
	s := open(t, withOptions(relay.url, "read_timeout=50ms"))
	before := content(server)
	for what, change := range late.tests() {
		for within, sent := 200*time.Millisecond, false; !sent; within *= 2 { // until it is sent in time, on however slow a machine
			ctx, cancel := context.WithTimeout(t.Context(), within)
			if _, err := s.Now(ctx); err != nil { // so that there is a connection
				cancel()
				continue
			}
			ran := server.scripts()
			relay.hold()
			err := change(ctx, s)
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s that is held up answers %v", what, err)
			}
			<-ctx.Done()
			cancel()
			if sent = relay.deliver(); !sent {
				continue
			}
			if errors.Is(err, store.ErrNotDone) != whole[what] {
				t.Errorf("%s that is held up answers %v", what, err)
			}
			server.await("the server has run what was late", func() bool { return server.scripts() > ran })
		}
		if after := content(server); !maps.Equal(after, before) {
			t.Errorf("%s that came late has changed something", what)
			before = after
		}
	}
}

// whole are the changes whose first script alone changes nothing: of those it is known that nothing was changed.
var whole = map[string]bool{"a put of many": true, "a replacement with marks": true}

// TestRefusedAsLate: one whose answer tells that it was late is known to have changed nothing.
func TestRefusedAsLate(t *testing.T) {
	server := newServer(t)
	relay := newRelay(t, server)
	s := open(t, relay.url)
	mustPut(t, s, put("k", 1))
	for within, sent := 200*time.Millisecond, false; !sent; within *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		relay.hold()
		delivered := make(chan bool)
		go func() {
			<-ctx.Done()
			delivered <- relay.deliver()
		}()
		_, err := s.Cancel(ctx, []job.Name{{Tenant: job.DefaultTenant, Key: "k"}}, store.Asked{Now: epoch})
		if !errors.Is(err, store.ErrNotDone) {
			t.Errorf("cancel answers %v", err)
		}
		sent = <-delivered
		cancel()
	}
	if c := claim(t, s, epoch, 10); len(c.Occurrences) != 1 {
		t.Errorf("claimed %d after a cancellation that was late", len(c.Occurrences))
	}
}

// TestNotDone: of a change that was not sent, or that the server refused, it is known that nothing was changed.
func TestNotDone(t *testing.T) {
	server := newServer(t)
	relay := newRelay(t, server)
	s := open(t, relay.url)
	mustPut(t, s, put("k", 1))
	name := job.Name{Tenant: job.DefaultTenant, Key: "k"}
	cancelling := func(ctx context.Context) error {
		_, err := s.Cancel(ctx, []job.Name{name, name}, store.Asked{Now: epoch})
		return err
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	server.must("config", "set", "maxmemory", "1")
	full := s.Put(t.Context(), []store.Put{put("k", 2500)})[0].Err
	server.must("config", "set", "maxmemory", "0")
	server.must("replicaof", "127.0.0.1", "1") // where nobody is
	replica := cancelling(t.Context())
	server.must("replicaof", "no", "one")
	relay.dieAfter(0)
	lost := cancelling(t.Context())
	for _, c := range []struct {
		what  string
		err   error
		known bool
	}{
		{"the context is over", cancelling(over), true},
		{"the memory is full", full, true},
		{"the server is a replica", replica, true},
		{"the answer is lost", lost, false},
	} {
		if !errors.Is(c.err, store.ErrUnavailable) || errors.Is(c.err, store.ErrNotDone) != c.known {
			t.Errorf("when %s, a change answers %v", c.what, c.err)
		}
	}
}
