//go:build services

package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// TestKilled: a server is killed while jobs are put and delivered. After its restart it has everything that it
// acknowledged, and no delivered occurrence.
func TestKilled(t *testing.T) {
	server := newServer(t, "--appendonly", "yes", "--appendfsync", "always")
	s := open(t, server.url)
	var mu sync.Mutex
	acknowledged, tried, delivered := map[string]bool{}, map[string]bool{}, map[string]bool{}
	note := func(in map[string]bool, keys ...string) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			in[key] = true
		}
	}
	var group sync.WaitGroup
	for putter := range 2 {
		group.Go(func() {
			for i := 0; ; i++ {
				puts := make([]store.Put, 10)
				for k := range puts {
					puts[k] = put(fmt.Sprintf("%d-%d-%d", putter, i, k), 1)
				}
				for k, r := range s.Put(t.Context(), puts) {
					switch {
					case r.Err == nil:
						note(acknowledged, puts[k].Job.Key)
					case !errors.Is(r.Err, store.ErrUnavailable):
						t.Errorf("put answers %v", r.Err)
					case k == len(puts)-1:
						return
					}
				}
			}
		})
	}
	group.Go(func() {
		for {
			c, err := s.Claim(t.Context(), claimParams(epoch, 4))
			if err == nil {
				keys := make([]string, len(c.Occurrences))
				for i := range c.Occurrences {
					keys[i] = c.Occurrences[i].Name.Key
				}
				note(tried, keys...)
				if err = s.Settle(t.Context(), acks(c.Occurrences)); err == nil {
					note(delivered, keys...)
				}
			}
			if err != nil {
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("claim or settle answers %v", err)
				}
				return
			}
		}
	})
	server.await("much is put and delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged) > 300 && len(delivered) > 50
	})
	server.end(syscall.SIGKILL)
	group.Wait()
	if _, err := s.Now(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("while the server is away, its time is answered with %v", err)
	}
	server.start()
	server.await("the store has found its server again", func() bool {
		_, err := s.Now(t.Context())
		return err == nil
	})
	for key := range acknowledged {
		status, err := store.ReadJob(t.Context(), s, job.Name{Tenant: job.DefaultTenant, Key: key})
		if err != nil {
			t.Fatalf("%s was acknowledged: %v", key, err)
		}
		if !tried[key] && !status.Live() || delivered[key] && status.Live() {
			t.Errorf("%s is live: %v, though delivered: %v", key, status.Live(), delivered[key])
		}
	}
}

// TestFlushedScripts: a server forgets its scripts when they are flushed, and when it restarts.
func TestFlushedScripts(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				server.must("script", "flush")
			}
		}
	})
	const puts, batches = 50, 10
	claimed := 0
	for i := range batches {
		batch := make([]store.Put, puts)
		for k := range batch {
			batch[k] = put(fmt.Sprintf("%d-%d", i, k), 1)
		}
		mustPut(t, s, batch...)
		c := claim(t, s, epoch, puts)
		claimed += len(c.Occurrences)
		if err := s.Settle(t.Context(), acks(c.Occurrences)); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	group.Wait()
	if claimed != puts*batches {
		t.Errorf("claimed %d of %d", claimed, puts*batches)
	}
}

// TestLatePut: a put that the server executes only after its deadline does not take effect.
func TestLatePut(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("k", 1)) // makes a connection, so that the next put is sent although the server does not read it
	before := server.scripts()

	late := put("late", 1)
	for within, sent := 100*time.Millisecond, false; !sent; within *= 2 { // until it is sent in time, on however slow a machine
		server.signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		r := s.Put(ctx, []store.Put{late})[0]
		cancel()
		server.signal(syscall.SIGCONT)
		if !errors.Is(r.Err, store.ErrUnavailable) || within > 5*time.Minute {
			t.Fatalf("put answers %v", r.Err)
		}
		sent = !errors.Is(r.Err, store.ErrNotDone)
	}
	server.await("the server has run the late script", func() bool { return server.scripts() > before })
	if _, err := store.ReadJob(t.Context(), s, late.Job.Name); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the late put has taken effect: %v", err)
	}
}

// TestReplica: a server that a failover turned into a replica is unavailable, until it is a master again.
func TestReplica(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("k", 1))
	server.must("replicaof", "127.0.0.1", "1") // where no server is
	if r := s.Put(t.Context(), []store.Put{put("more", 1)})[0]; !errors.Is(r.Err, store.ErrUnavailable) {
		t.Errorf("put answers %v", r.Err)
	}
	if _, err := s.Claim(t.Context(), claimParams(epoch, 1)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("claim answers %v", err)
	}
	if another, err := redis.Open(t.Context(), server.url); !errors.Is(err, store.ErrUnavailable) {
		if err == nil {
			_ = another.Close()
		}
		t.Errorf("open answers %v", err)
	}
	server.must("replicaof", "no", "one")
	mustPut(t, s, put("more", 1))
	if c := claim(t, s, epoch, 10); len(c.Occurrences) != 2 {
		t.Errorf("claimed %d", len(c.Occurrences))
	}
}

// TestFull: a server whose memory is full accepts no more jobs, but its occurrences are claimed and delivered, or
// paused.
func TestFull(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	const n = 50
	for i := range n {
		mustPut(t, s, put(strconv.Itoa(i), 1))
	}
	server.must("config", "set", "maxmemory", "1")
	if r := s.Put(t.Context(), []store.Put{put("more", 1)})[0]; !errors.Is(r.Err, store.ErrUnavailable) {
		t.Errorf("put answers %v", r.Err)
	}
	c := claim(t, s, epoch, 2*n)
	if len(c.Occurrences) != n {
		t.Fatalf("claimed %d, want %d", len(c.Occurrences), n)
	}
	settlements := acks(c.Occurrences)
	for i := range settlements {
		settlements[i].Outcome = []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss}[i%5]
	}
	if err := s.Settle(t.Context(), settlements); err != nil {
		t.Error(err)
	}
	results, err := s.Cancel(t.Context(), []job.Name{c.Occurrences[1].Name}, store.Asked{Now: epoch})
	if err != nil || !results[0].Found {
		t.Errorf("cancel answers %v, %v", results, err)
	}
	mustWrite(t, s, record("created", "1"))
	server.must("config", "set", "maxmemory", "0")
	mustPut(t, s, put("more", 1))
}

// TestUnreadable: an unreadable occurrence is claimed with a fault, beside the others.
func TestUnreadable(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	mustPut(t, s, put("options", 1), put("target", 1), put("good", 1), put("record", 1))
	const tenant = job.DefaultTenant + "\x00"
	server.must("hset", "carillon:{0}:targets", tenant+"options", "http\x00{nonsense\x00{}")
	server.must("hset", "carillon:{0}:targets", tenant+"target", "nonsense")
	c := claim(t, s, epoch, 10)
	if len(c.Occurrences) != 4 {
		t.Fatalf("claimed %d", len(c.Occurrences))
	}
	for _, o := range c.Occurrences {
		if bad := o.Name.Key == "options" || o.Name.Key == "target"; (o.Fault != nil) != bad {
			t.Errorf("%s has the fault %v", o.Name.Key, o.Fault)
		}
	}
	// An occurrence without any record does not keep others from being claimed.
	server.must("hdel", "carillon:{0}:occurrences", c.Occurrences[0].ID.String())
	if c = claim(t, s, epoch.Add(lease), 10); len(c.Occurrences) != 3 {
		t.Errorf("claimed %d of the others", len(c.Occurrences))
	}
}
