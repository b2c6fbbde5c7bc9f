package store

import "context"

// Warner is a [Store] that can report settings of its server that endanger the service although the store works. Not
// every store implements it; a wrapper passes the warnings on.
type Warner interface {
	// Warnings returns one sentence for each problem in the server's configuration. It asks the server each time, so
	// ctx should have a deadline. A server that does not respond causes no warning.
	Warnings(ctx context.Context) []string
}
