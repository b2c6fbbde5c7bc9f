package store

import "context"

// Warner is a [Store] that can tell how its server is set up otherwise than it should be, though the store works.
// Not every store is one; whatever wraps a store passes the warnings on.
type Warner interface {
	// Warnings answers one sentence for each fault in the server's configuration, or none. It asks the server each
	// time, so ctx should have a deadline; a server that does not answer is no warning.
	Warnings(ctx context.Context) []string
}
