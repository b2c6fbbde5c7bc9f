package handlers

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/carillon-scheduler/carillon/job"
)

// Routes lists the router's routes as "METHOD /path/:parameter".
func Routes(config Config) []string {
	var routes []string
	for _, r := range newEngine(config).Routes() {
		routes = append(routes, r.Method+" "+r.Path)
	}
	return routes
}

// Gathered offers items of a weight while no chunk is taken, waits until nothing moves any more, and answers how many
// items were taken.
func Gathered(ctx context.Context, weight int, wait func()) int {
	chunks := make(chan chunk, 1)
	var taken atomic.Int64
	go func() {
		for gather(ctx, chunks, item{weight: weight}) {
			taken.Add(1)
		}
	}()
	wait()
	return int(taken.Load())
}

// MostRemembered meets so many tenants, one after the other, and answers how many are remembered at the most.
func MostRemembered(n int) (most int) {
	var m meeting
	for i := range n {
		m.remember([]job.Tenant{{Name: strconv.Itoa(i)}})
		most = max(most, len(m.met))
	}
	return most
}
