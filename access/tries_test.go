package access_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
)

// TestTries: an address has some at once and then one a second, whichever of its ports and spellings it comes from.
func TestTries(t *testing.T) {
	tries, now := access.NewTries(), epoch
	for _, c := range []struct {
		what, from, same, other string
	}{
		{"IPv4", "192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"},
		{"IPv4 in IPv6", "[::ffff:192.0.2.9]:1", "192.0.2.9:1", "[::ffff:192.0.2.10]:1"},
		{"the network of a host", "[2001:db8::1]:1", "[2001:db8::ffff:1]:1", "[2001:db8:0:1::1]:1"},
		{"zone", "[fe80::1%eth0]:1", "[fe80::1%eth1]:1", "[fe90::1%eth0]:1"},
		{"no address", "@", "", "198.51.100.1:1"},
	} {
		made := 0
		for ; made < 1000 && tries.Wait(c.from, now) == 0; made++ {
			tries.Failed(c.from, now)
		}
		if made != 20 || tries.Wait(c.from, now) != time.Second || tries.Wait(c.same, now) != time.Second || tries.Wait(c.other, now) != 0 {
			t.Errorf("%s: after %d the pauses are %s, %s for the same and %s for another one", c.what, made, tries.Wait(c.from, now),
				tries.Wait(c.same, now), tries.Wait(c.other, now))
		}
		if later := now.Add(time.Second); tries.Wait(c.same, later) != 0 {
			t.Errorf("%s: after a second the pause is %s", c.what, tries.Wait(c.same, later))
		}
	}
	const from = "203.0.113.1:1"
	for range 20 {
		tries.Failed(from, now)
	}
	for i := range 10_000 { // enough for it to be forgotten
		tries.Failed(fmt.Sprintf("198.18.%d.%d:1", i/256, i%256), now)
	}
	if wait := tries.Wait(from, now); wait != 0 {
		t.Errorf("after 10,000 others it is remembered for %s", wait)
	}
}
