package callbacks

import "log/slog"

// Replica describes the replica of a sender.
type Replica struct {
	// Concurrency is the maximum number of attempts under way.
	Concurrency int
	// Exposed reports that other machines can reach the API. Then the clients that submit jobs may not be the operator.
	Exposed bool
	// UserAgent names the program and its version.
	UserAgent string
	// Logger logs connections that are made or lost.
	Logger *slog.Logger
}
