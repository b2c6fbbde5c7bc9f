// Package testcluster runs a fake Kafka cluster in the process of a test: one broker, which can be stopped, and started
// again at the same port with the same records.
package testcluster

import (
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// patience limits the wait for the port at a restart.
const patience = 5 * time.Minute

// Cluster is the cluster. A test may not use it from elsewhere while Start runs.
type Cluster struct {
	*kfake.Cluster // of the last start

	t    testing.TB
	opts []kfake.Opt
}

// Start starts a cluster with further options. It is stopped when t ends.
func Start(t testing.TB, opts ...kfake.Opt) *Cluster {
	t.Helper()
	// A folder keeps the records, and the ids of topics.
	c := &Cluster{t: t, opts: slices.Concat([]kfake.Opt{kfake.NumBrokers(1), kfake.DataDir(t.TempDir())}, opts)}
	var err error
	if c.Cluster, err = kfake.NewCluster(c.opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, port, err := net.SplitHostPort(c.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c.opts = append(c.opts, kfake.Ports(n))
	return c
}

// Start starts a cluster that was closed.
func (c *Cluster) Start() {
	c.t.Helper()
	// A program that connects while nobody listens may have the port for a moment, as the one that it connects from.
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		again, err := kfake.NewCluster(c.opts...)
		if err == nil {
			c.Cluster = again
			return
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}
