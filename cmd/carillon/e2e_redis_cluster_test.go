//go:build services && long

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// TestRedisCluster: clients submit and cancel jobs, and others fire, while a Redis Cluster moves its slots from node to
// node, masters hand over to their replicas, and masters are killed. Every answer is a success or a 503. No
// acknowledged job is lost, and no delivery comes twice, with one exception that docs/stores.md describes: a master
// that dies loses the changes that it had acknowledged right before and not yet sent to its replica.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	nodes := newRedisCluster(t)
	opened, err := openRedis(t.Context(), nodes.url)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, nodes.url, opened)
	c.start(2, longLease...)
	load := &clusterLoad{cluster: c, stop: make(chan struct{}), done: make(map[string]*clusterJob)}
	for i := range 3 {
		load.Go(func() { load.submit(i) })
	}
	load.more(500)

	for _, step := range []struct {
		what string
		do   func() (from time.Time)
		dies bool
	}{
		{what: "the slots of all jobs move to other nodes, key by key", do: func() time.Time {
			nodes.reshard()
			return time.Now()
		}},
		{what: "each master hands over to its replica", do: func() time.Time {
			for _, m := range nodes.masters() {
				nodes.handOver(m)
			}
			return time.Now()
		}},
		{what: "a master is killed", do: func() time.Time { return nodes.kill(nodes.masters()[0]) }, dies: true},
		{what: "another is killed", do: func() time.Time { return nodes.kill(nodes.masters()[1]) }, dies: true},
		{what: "another hangs", do: func() time.Time { return nodes.hang(nodes.masters()[2]) }, dies: true},
	} {
		begun, before := time.Now(), load.refused.Load()
		died := step.do()
		load.more(500) // the cluster works
		if step.dies {
			load.deaths = append(load.deaths, span{died, time.Now()})
		}
		t.Logf("%s: %s; %d requests refused meanwhile; the latest delivery %s late", step.what,
			time.Since(begun).Round(10*time.Millisecond), load.refused.Load()-before, load.latest(begun))
		nodes.whole()
	}
	close(load.stop)
	load.Wait()
	load.judge()
}

// span is a time from one moment to another.
type span struct{ from, to time.Time }

// clusterJob is a job that a client has submitted, once.
type clusterJob struct {
	instants     int
	asked        time.Time
	acknowledged time.Time // zero: it was not
	unchanged    bool      // the answer said that nothing was changed
	// ended is the time of the answer to a cancellation that found no claimed occurrence; zero if there was none.
	ended time.Time
}

// clusterLoad has clients, and the answers that they got.
type clusterLoad struct {
	*cluster
	sync.WaitGroup
	stop              chan struct{}
	accepted, refused atomic.Int64
	deaths            []span // from the death of a master until the cluster works again

	lock     sync.Mutex
	done     map[string]*clusterJob // by key
	problems []string
}

// submit submits one job after the other, each under a key of its own, and cancels some of them.
func (l *clusterLoad) submit(client int) {
	const instants = 4
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-time.After(15 * time.Millisecond):
		}
		key := fmt.Sprintf("c%d-%d", client, n)
		schedules := make([]string, instants)
		for i := range schedules {
			schedules[i] = time.Now().Add(time.Duration(i+2) * time.Second).UTC().Format(time.RFC3339Nano)
		}
		to, asked := l.replicas[n%len(l.replicas)], time.Now()
		status, answer := l.ask(to, http.MethodPut, key, map[string]any{"schedules": schedules, "callback": l.webhook()})
		j := &clusterJob{instants: instants, asked: asked, unchanged: bytes.Contains(answer, []byte("nothing was changed"))}
		if status == http.StatusCreated {
			j.acknowledged = time.Now()
			l.accepted.Add(1)
			if n%10 == 0 {
				status, answer = l.ask(to, http.MethodDelete, key, nil)
				var told struct{ Cancelled, InFlight int }
				if status == http.StatusOK && json.Unmarshal(answer, &told) == nil && told.Cancelled == instants {
					j.ended = time.Now()
				} else {
					j.acknowledged = time.Time{} // it may fire or not
				}
			}
		}
		l.lock.Lock()
		l.done[key] = j
		l.lock.Unlock()
	}
}

// ask makes a request on a job. It notes an answer that is neither a success nor a 503.
func (l *clusterLoad) ask(to *replica, method, key string, body any) (status int, answer []byte) {
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // can't happen
	}
	request, err := http.NewRequest(method, to.url+"/v1/jobs/"+key, bytes.NewReader(content))
	if err != nil {
		panic(err) // can't happen
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err == nil {
		defer response.Body.Close()
		status = response.StatusCode
		answer, err = io.ReadAll(response.Body)
	}
	switch {
	case err == nil && status < 300:
	case err == nil && status == http.StatusServiceUnavailable:
		l.refused.Add(1)
	default:
		l.lock.Lock()
		defer l.lock.Unlock()
		l.problems = append(l.problems, fmt.Sprintf("%s %s: %v, %d %s", method, key, err, status, answer))
	}
	return status, answer
}

// more waits until n more jobs are accepted.
func (l *clusterLoad) more(n int64) {
	l.Helper()
	want := l.accepted.Load() + n
	l.until("jobs are submitted", func() bool { return l.accepted.Load() >= want })
}

// atDeath reports whether a master may have died right after a moment, or was being replaced then.
func (l *clusterLoad) atDeath(at time.Time) bool {
	return slices.ContainsFunc(l.deaths, func(d span) bool {
		return at.After(d.from.Add(-time.Second)) && at.Before(d.to)
	})
}

// failureBefore returns the time of the last failure of a master up to a second after a moment; zero if there was none.
func (l *clusterLoad) failureBefore(at time.Time) (last time.Time) {
	for _, d := range l.deaths {
		if d.from.Before(at.Add(time.Second)) {
			last = d.from
		}
	}
	return last
}

// latest returns the largest lateness of the deliveries since a time.
func (l *clusterLoad) latest(since time.Time) (most time.Duration) {
	l.receiver.lock.Lock()
	defer l.receiver.lock.Unlock()
	for _, a := range l.receiver.arrivals {
		if a.at.After(since) {
			most = max(most, a.at.Sub(a.instant))
		}
	}
	return most.Round(time.Millisecond)
}

// judge waits until all is delivered, and compares the deliveries with the answers of clients.
func (l *clusterLoad) judge() {
	l.Helper()
	type instant struct {
		key string
		at  int64
	}
	came := func() (all map[instant][]arrival) {
		all = make(map[instant][]arrival)
		l.receiver.lock.Lock()
		defer l.receiver.lock.Unlock()
		for _, a := range l.receiver.arrivals {
			i := instant{a.key, a.instant.UnixMilli()}
			all[i] = append(all[i], a)
		}
		return all
	}
	// Wait for deliveries that may be lost for longer than a claim lasts.
	var got map[string]int
	var lost, lostAtDeath int
	look := func() bool {
		got, lost, lostAtDeath = make(map[string]int), 0, 0
		for i := range came() {
			got[i.key]++
		}
		for key, j := range l.done {
			switch missing := j.instants - got[key]; {
			case j.acknowledged.IsZero() || !j.ended.IsZero() || missing == 0:
			case l.atDeath(j.acknowledged):
				lostAtDeath += missing
			default:
				lost += missing
			}
		}
		return lost+lostAtDeath == 0
	}
	for begun := time.Now(); !look(); time.Sleep(200 * time.Millisecond) {
		if took := time.Since(begun); took > patience || lost == 0 && took > 90*time.Second {
			break
		}
	}
	if lost > 0 {
		l.Errorf("%d occurrences are lost that were acknowledged while no master died", lost)
	}
	for key, j := range l.done {
		if !j.acknowledged.IsZero() && j.ended.IsZero() && got[key] < j.instants {
			l.Logf("%s is lost: it was acknowledged after %s, %s after the failure", key,
				j.acknowledged.Sub(j.asked).Round(time.Millisecond), j.acknowledged.Sub(l.failureBefore(j.acknowledged)).Round(time.Millisecond))
		}
	}
	undone, undoneAtDeath, unasked := 0, 0, 0
	for key, j := range l.done {
		switch {
		case got[key] == 0:
		case !j.ended.IsZero() && l.atDeath(j.ended):
			undoneAtDeath++
		case !j.ended.IsZero():
			undone++
		case j.unchanged:
			unasked++
		}
	}
	if undone > 0 {
		l.Errorf("%d jobs fired that were cancelled while no master died", undone)
	}
	if unasked > 0 {
		l.Errorf("%d jobs fired although the answer said that nothing was changed", unasked)
	}
	twice, twiceAtDeath := 0, 0
	for _, all := range came() {
		if len(all) > 1 && l.atDeath(all[0].at) {
			twiceAtDeath++
		} else if len(all) > 1 {
			twice++
		}
	}
	if twice > 0 {
		l.Errorf("%d came twice while no master died", twice)
	}
	if l.receiver.early > 0 {
		l.Errorf("%d came early", l.receiver.early)
	}
	for _, problem := range l.problems {
		l.Error(problem)
	}
	l.noDeadLetters()
	l.Logf("%d jobs accepted, %d requests refused, %d deliveries; around a master's death %d lost, %d cancellations undone, %d delivered twice",
		l.accepted.Load(), l.refused.Load(), len(l.receiver.arrivals), lostAtDeath, undoneAtDeath, twiceAtDeath)
	l.lateness("in all", func(time.Time) bool { return true })
}

// redisCluster is a Redis Cluster of three masters, each with a replica.
type redisCluster struct {
	*testing.T
	url   string
	nodes []*redisNode
}

type redisNode struct {
	address string
	args    []string
	command *exec.Cmd
	direct  *goredis.Client
}

func newRedisCluster(t *testing.T) *redisCluster {
	c := &redisCluster{T: t}
	var addresses []string
	for range 6 {
		address, bus := freePort(t), freePort(t)
		_, port, _ := strings.Cut(address, ":")
		_, busPort, _ := strings.Cut(bus, ":")
		n := &redisNode{
			address: address,
			args: []string{
				"--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--save", "", "--appendonly", "yes",
				"--cluster-enabled", "yes", "--cluster-port", busPort, "--cluster-node-timeout", "2000",
			},
			direct: goredis.NewClient(&goredis.Options{Addr: address}),
		}
		c.nodes, addresses = append(c.nodes, n), append(addresses, address)
		t.Cleanup(func() {
			_ = n.direct.Close()
			_ = n.command.Process.Kill() // it may have ended already
			_ = n.command.Wait()
		})
		c.start(n)
	}
	c.cli(append(append([]string{"--cluster", "create"}, addresses...), "--cluster-replicas", "1", "--cluster-yes")...)
	c.url = "redis://" + strings.Join(addresses, ",") + "?cluster=true"
	c.whole()
	return c
}

// freePort returns an address on loopback without a listener.
func freePort(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (c *redisCluster) start(n *redisNode) {
	c.Helper()
	n.command = exec.Command("redis-server", n.args...)
	if err := n.command.Start(); err != nil {
		c.Fatal(err)
	}
	await(c.T, "a node answers", func() bool { return n.direct.Ping(c.Context()).Err() == nil })
}

func (c *redisCluster) cli(args ...string) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "redis-cli", args...).CombinedOutput(); err != nil {
		c.Fatalf("redis-cli %s: %v\n%s", strings.Join(args, " "), err, out[max(0, len(out)-2000):])
	}
}

// whole waits until all nodes see a cluster of three masters, each with a replica that follows.
func (c *redisCluster) whole() {
	c.Helper()
	await(c.T, "the cluster is whole", func() bool {
		for _, n := range c.nodes {
			info, _ := n.direct.ClusterInfo(c.Context()).Result()
			role, _ := n.direct.Info(c.Context(), "replication").Result()
			follows := strings.Contains(role, "role:slave") && strings.Contains(role, "master_link_status:up")
			leads := strings.Contains(role, "role:master") && strings.Contains(role, "state=online")
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, "cluster_slots_ok:16384") || !follows && !leads {
				return false
			}
		}
		return len(c.masters()) == 3
	})
}

// masters returns the nodes that have slots.
func (c *redisCluster) masters() (all []*redisNode) {
	for _, n := range c.nodes {
		if c.leads(n) {
			all = append(all, n)
		}
	}
	return all
}

func (c *redisCluster) leads(n *redisNode) bool {
	role, _ := n.direct.Info(c.Context(), "replication").Result()
	return strings.Contains(role, "role:master")
}

// replicaOf returns the node that follows a master.
func (c *redisCluster) replicaOf(master *redisNode) *redisNode {
	c.Helper()
	_, port, _ := strings.Cut(master.address, ":")
	for _, n := range c.nodes {
		if role, _ := n.direct.Info(c.Context(), "replication").Result(); strings.Contains(role, "master_port:"+port+"\r") {
			return n
		}
	}
	c.Fatalf("%s has no replica", master.address)
	return nil
}

// reshard moves each slot that has keys to the next master, as `redis-cli --cluster reshard` does, but with a pause after
// each key, in which the slot is in two parts.
func (c *redisCluster) reshard() {
	c.Helper()
	masters := c.masters()
	do := func(n *redisNode, args ...any) any {
		answer, err := n.direct.Do(c.Context(), args...).Result()
		if err != nil {
			c.Fatalf("%v: %v", args, err)
		}
		return answer
	}
	moved := make(map[int64]bool)
	for i, from := range masters {
		to := masters[(i+1)%len(masters)]
		host, port, _ := strings.Cut(to.address, ":")
		fromID, toID := do(from, "cluster", "myid"), do(to, "cluster", "myid")
		keys, err := from.direct.Keys(c.Context(), "*").Result()
		if err != nil {
			c.Fatal(err)
		}
		for _, key := range keys {
			slot, _ := do(from, "cluster", "keyslot", key).(int64)
			if moved[slot] {
				continue
			}
			moved[slot] = true
			do(to, "cluster", "setslot", slot, "importing", fromID)
			do(from, "cluster", "setslot", slot, "migrating", toID)
			for {
				left, _ := do(from, "cluster", "getkeysinslot", slot, 1).([]any)
				if len(left) == 0 {
					break
				}
				do(from, "migrate", host, port, left[0], 0, 5000)
				time.Sleep(10 * time.Millisecond)
			}
			do(to, "cluster", "setslot", slot, "node", toID)
			do(from, "cluster", "setslot", slot, "node", toID)
		}
	}
	c.Logf("%d slots have moved", len(moved))
	c.whole()
}

// handOver makes a master's replica the master.
func (c *redisCluster) handOver(master *redisNode) {
	c.Helper()
	next := c.replicaOf(master)
	if err := next.direct.ClusterFailover(c.Context()).Err(); err != nil {
		c.Fatal(err)
	}
	await(c.T, "the replica is the master", func() bool { return c.leads(next) })
	c.whole()
}

// kill kills a master, and starts it again when its replica has taken its place. It returns when it was killed.
func (c *redisCluster) kill(master *redisNode) (at time.Time) {
	c.Helper()
	return c.replaced(master, func() {
		_ = master.command.Process.Kill() // says that it has ended, if it has
		_ = master.command.Wait()
	}, func() { c.start(master) })
}

// hang stops a master until its replica has taken its place. It returns when it was stopped.
func (c *redisCluster) hang(master *redisNode) (at time.Time) {
	c.Helper()
	return c.replaced(master, func() { _ = master.command.Process.Signal(syscall.SIGSTOP) },
		func() { _ = master.command.Process.Signal(syscall.SIGCONT) })
}

func (c *redisCluster) replaced(master *redisNode, fail, restore func()) (at time.Time) {
	c.Helper()
	next := c.replicaOf(master)
	at = time.Now()
	fail()
	await(c.T, "the replica is the master", func() bool { return c.leads(next) })
	c.Logf("a replica took over after %s", time.Since(at).Round(10*time.Millisecond))
	restore()
	return at
}
