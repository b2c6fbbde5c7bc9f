//go:build services

package redis_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// mutations returns one call of each kind that changes documents for a client.
func mutations(t *testing.T, s store.Store) []storetest.Mutation {
	t.Helper()
	return append(storetest.Mutations(t, s, ""), storetest.LargeMutations(t, s, "")...)
}

// content returns everything on a server.
func content(server *server) map[string]any {
	all := make(map[string]any)
	keys, _ := server.must("keys", "*").([]any)
	for _, key := range keys {
		all[key.(string)] = server.must("dump", key) //nolint:errcheck // it is a string
	}
	return all
}

// TestLate: a change that reaches the server after its deadline changes nothing, although it was sent in time. Its
// caller has given up.
func TestLate(t *testing.T) {
	server := newServer(t)
	warm := open(t, withOptions(server.url, "prefix=warm"))
	for _, m := range mutations(t, warm) { // so that the server knows the scripts
		if err := m.Do(t.Context(), warm); err != nil {
			t.Fatalf("%s in time: %v", m.Name, err)
		}
	}
	late := mutations(t, open(t, server.url))
	relay := newRelay(t, server)
	s := open(t, withOptions(relay.url, "read_timeout=50ms"))
	before := content(server)
	for _, m := range late {
		for within, sent := 200*time.Millisecond, false; !sent; within *= 2 { // until it is sent in time, on however slow a machine
			ctx, cancel := context.WithTimeout(t.Context(), within)
			if _, err := s.Now(ctx); err != nil { // so that there is a connection
				cancel()
				continue
			}
			ran := server.scripts()
			relay.hold()
			err := m.Do(ctx, s)
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s that is held up answers %v", m.Name, err)
			}
			<-ctx.Done()
			cancel()
			if sent = relay.deliver(); !sent {
				continue
			}
			if errors.Is(err, store.ErrNotDone) != stepwise[m.Name] {
				t.Errorf("%s that is held up answers %v", m.Name, err)
			}
			server.await("the server has run the late scripts", func() bool { return server.scripts() > ran })
		}
		if after := content(server); !maps.Equal(after, before) {
			t.Errorf("%s that came late has changed something", m.Name)
			before = after
		}
	}
}

// stepwise are the mutations of several scripts, only the last of which changes anything. A failure of the first is
// therefore certain.
var stepwise = map[string]bool{"put many instants": true, "replace and carry many over": true}

// TestRefusedAsLate: a change that the server refused as late is known to have changed nothing.
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

// TestNotDone: a change that was not sent, or that the server refused, is known to have changed nothing.
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
	server.must("replicaof", "127.0.0.1", "1") // where no server is
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
