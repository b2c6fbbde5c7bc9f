package callbacks

import "log/slog"

// Replica is what senders are told of the replica that they send for.
type Replica struct {
	// Concurrency is how many attempts are under way at once at most.
	Concurrency int
	// Exposed tells that the API can be reached from other machines. Who submits jobs may then be someone else than who
	// runs the replica.
	Exposed bool
	// UserAgent names the program and its version.
	UserAgent string
	// Logger is told of connections that are made or lost.
	Logger *slog.Logger
}
