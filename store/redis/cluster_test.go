//go:build services

package redis_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// TestMovingSlot: while a cluster moves a shard's slot, the shard is unavailable, and no change is made in part. Then
// it works at its new node.
func TestMovingSlot(t *testing.T) {
	server := clusterURL(t)
	url := newStore(t, server, "shards=17") // no other test has the slot of the seventeenth
	s := open(t, url)
	prefix := url[strings.Index(url, "prefix=")+len("prefix="):]
	prefix, _, _ = strings.Cut(prefix, "&")
	cluster := clusterOf(t, server)
	shard := prefix + ":{16}:"

	const n = 40
	var puts []store.Put
	for i := 0; len(puts) < n; i++ { // jobs that are in that shard
		p := put(strconv.Itoa(i), 2)
		mustPut(t, s, p)
		if found, err := cluster.HExists(t.Context(), shard+"jobs", job.DefaultTenant+"\x00"+p.Job.Key).Result(); err != nil {
			t.Fatal(err)
		} else if found {
			puts = append(puts, p)
			continue
		}
		if _, err := s.Cancel(t.Context(), []job.Name{p.Job.Name}, store.Asked{Now: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	// No script is refused because of a key that happens to be empty.
	for _, name := range []string{"attempts", "errors"} {
		if err := cluster.HSet(t.Context(), shard+name, "x", "").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"expansion", "own", "dead", "dead-by-tenant", "dead-by-job"} {
		if err := cluster.ZAdd(t.Context(), shard+name, goredis.Z{Member: "x"}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	move := newMove(t, cluster, shard+"jobs")
	move.begin()
	move.this(shard + "pending:" + job.DefaultTenant)
	refused := 0
	for moved := 0; ; moved++ { // one key after the other
		name := puts[moved%n].Job.Name
		_, err := s.Cancel(t.Context(), []job.Name{name}, store.Asked{Now: epoch})
		if errors.Is(err, store.ErrUnavailable) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
		if !move.key() {
			break
		}
	}
	move.end()
	if refused == 0 {
		t.Error("no key was moved while the shard was in use")
	}
	left := 0
	for _, p := range puts {
		_, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: p.Job.Name, Revision: p.Job.Revision, Limit: 10, Count: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = store.ReadJob(t.Context(), s, p.Job.Name)
		if there := err == nil; there != (total == 2) || total == 1 {
			t.Errorf("%s has %d occurrences, and is there: %v", p.Job.Name, total, there)
		} else if there {
			left++
		}
	}
	if c := claim(t, s, epoch.Add(time.Hour), 1000); len(c.Occurrences) != 2*left {
		t.Errorf("claimed %d of %d jobs' occurrences", len(c.Occurrences), left)
	}
}

func clusterOf(t *testing.T, url string) *goredis.ClusterClient {
	t.Helper()
	hosts, _, _ := strings.Cut(strings.TrimPrefix(url, "redis://"), "?")
	cluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: strings.Split(hosts, ",")})
	t.Cleanup(func() { _ = cluster.Close() })
	return cluster
}

// move is the move of a slot from one node of a cluster to another.
type move struct {
	t              *testing.T
	slot           int64
	from, to       *goredis.Client
	fromID, toID   string
	toHost, toPort string
	nodes          []*goredis.Client
}

// newMove prepares to move the slot of a key to another node.
func newMove(t *testing.T, cluster *goredis.ClusterClient, key string) *move {
	t.Helper()
	m := &move{t: t}
	var err error
	if m.slot, err = cluster.ClusterKeySlot(t.Context(), key).Result(); err != nil {
		t.Fatal(err)
	}
	if m.from, err = cluster.MasterForKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	nodes := make(chan *goredis.Client, 10)
	if err := cluster.ForEachMaster(t.Context(), func(_ context.Context, c *goredis.Client) error {
		nodes <- c
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close(nodes)
	for node := range nodes {
		m.nodes = append(m.nodes, node)
		if node.Options().Addr != m.from.Options().Addr {
			m.to = node
		}
	}
	m.fromID, m.toID = m.must(m.from, "cluster", "myid").(string), m.must(m.to, "cluster", "myid").(string)
	m.toHost, m.toPort, _ = strings.Cut(m.to.Options().Addr, ":")
	return m
}

func (m *move) must(node *goredis.Client, args ...any) any {
	m.t.Helper()
	answer, err := node.Do(m.t.Context(), args...).Result()
	if err != nil {
		m.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

func (m *move) begin() {
	m.must(m.to, "cluster", "setslot", m.slot, "importing", m.fromID)
	m.must(m.from, "cluster", "setslot", m.slot, "migrating", m.toID)
}

// key moves one key, if any is left.
func (m *move) key() bool {
	m.t.Helper()
	keys, _ := m.must(m.from, "cluster", "getkeysinslot", m.slot, 1).([]any)
	if len(keys) == 0 {
		return false
	}
	m.this(keys[0])
	return true
}

// this moves one existing key.
func (m *move) this(key any) {
	m.t.Helper()
	if answer := m.must(m.from, "migrate", m.toHost, m.toPort, key, 0, 5000); answer != "OK" {
		m.t.Fatalf("%s is not moved: %v", key, answer)
	}
}

func (m *move) end() {
	for _, node := range append([]*goredis.Client{m.to, m.from}, m.nodes...) {
		m.must(node, "cluster", "setslot", m.slot, "node", m.toID)
	}
}

// newCluster starts a cluster of n nodes, which serves the slots that its nodes have. The first node's URL is the
// cluster's.
func newCluster(t testing.TB, n int) (nodes []*server) {
	t.Helper()
	const slots = 16384
	for i := range n {
		_, bus, _ := strings.Cut(freeAddress(t), ":") // the default is the port plus 10,000, which may exceed the range
		nodes = append(nodes, newServer(t, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-port", bus))
		nodes[i].must("cluster", "addslotsrange", i*slots/n, (i+1)*slots/n-1)
		host, port, _ := strings.Cut(strings.TrimPrefix(nodes[i].url, "redis://"), ":")
		nodes[0].must("cluster", "meet", host, port, bus)
	}
	for _, node := range nodes {
		node.await("the cluster stands", func() bool {
			info, _ := node.must("cluster", "info").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:"+strconv.Itoa(slots))
		})
	}
	nodes[0].url += "?cluster=true"
	return nodes
}

// TestHungNode: while a node of a cluster does not respond, the occurrences on the other nodes are claimed.
func TestHungNode(t *testing.T) {
	const shards = 16
	nodes := newCluster(t, 3)
	s := open(t, nodes[0].url)
	for i := range 300 {
		mustPut(t, s, put(strconv.Itoa(i), 1))
	}
	want := 0
	for i := range shards {
		key := "carillon:{" + strconv.Itoa(i) + "}:pending:default"
		for _, node := range nodes[:2] {
			if n, err := node.direct.ZCard(t.Context(), key).Result(); err == nil { // on an error it is another node's
				want += int(n)
			}
		}
	}
	nodes[2].signal(syscall.SIGSTOP)
	got := 0
	for got < want {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c, err := s.Claim(ctx, claimParams(epoch.Add(time.Hour), 20))
		cancel()
		if len(c.Occurrences) == 0 {
			t.Fatalf("%d of %d are claimed, then none: %v", got, want, err)
		}
		got += len(c.Occurrences)
	}
	if got != want || want == 0 {
		t.Errorf("claimed %d of %d", got, want)
	}
	nodes[2].await("it is passed over", func() bool {
		page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.AddDate(100, 0, 0), Limit: 1000})
		if !errors.Is(err, store.ErrUnavailable) || len(page.Lanes) != 1 {
			t.Fatalf("the lanes are answered with %v, %v", page.Lanes, err)
		}
		return strings.Contains(err.Error(), "did not answer a moment ago")
	})
	nodes[2].signal(syscall.SIGCONT)
	nodes[2].await("its occurrences are claimed too", func() bool {
		c, _ := s.Claim(t.Context(), claimParams(epoch.Add(time.Hour), 20))
		got += len(c.Occurrences)
		return got == 300
	})
}

// TestSlowNode: with a long read_timeout, a claim waits for a node that is slow.
func TestSlowNode(t *testing.T) {
	nodes := newCluster(t, 3)
	s := open(t, nodes[0].url+"&read_timeout=10m")
	for i := range 300 {
		mustPut(t, s, put(strconv.Itoa(i), 1))
	}
	nodes[2].signal(syscall.SIGSTOP)
	time.AfterFunc(3*time.Second, func() { nodes[2].signal(syscall.SIGCONT) }) // thrice the default time limit
	got := 0
	for got < 300 {
		c := claim(t, s, epoch.Add(time.Hour), 100)
		if len(c.Occurrences) == 0 {
			t.Fatalf("%d of 300 are claimed, then none", got)
		}
		got += len(c.Occurrences)
	}
}

// TestUnservedSlot: while a shard's slot has no node, the occurrences of the other shards are claimed, however unevenly
// they are spread. A replica can't start.
func TestUnservedSlot(t *testing.T) {
	const n, shards = 3000, 16
	server := newCluster(t, 1)[0]
	s := open(t, server.url)
	p := put("k", n)
	mustPut(t, s, p)
	for i := range shards {
		if shard := "carillon:{" + strconv.Itoa(i) + "}:"; server.must("exists", shard+"jobs") == int64(0) {
			server.must("cluster", "delslots", server.must("cluster", "keyslot", shard+"jobs"))
			break
		}
	}
	if c := claim(t, s, epoch.Add(time.Hour), 256); len(c.Occurrences) != 256 || !c.More() {
		t.Errorf("claimed %d, more: %v", len(c.Occurrences), c.More())
	}
	another, err := redis.Open(t.Context(), server.url)
	if err == nil {
		_ = another.Close()
	}
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no node for some of its slots") {
		t.Errorf("open answers %v", err)
	}
}
