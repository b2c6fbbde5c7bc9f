package handlers

import (
	"context"
	"sync/atomic"
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
