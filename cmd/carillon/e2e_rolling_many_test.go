//go:build services && long

package main_test

import (
	"slices"
	"testing"
	"time"
)

// TestRollingRestartOfMany is TestRollingRestart with replicas that take turns, each of which takes 12 s to stop.
func TestRollingRestartOfMany(t *testing.T) {
	tested := slices.DeleteFunc(slices.Clone(stores), func(s freshStore) bool { return s.name != "postgres" })
	on(t, tested, func(_ *testing.T, c *cluster) {
		c.rollingRestart(5, 30*time.Second, append([]string{"--concurrency=256"}, longLease...)...)
	})
}
