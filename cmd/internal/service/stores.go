package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/redis"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// storeKinds has all kinds of stores, the recommended one first. A new kind is one more entry; help and messages
// follow.
var storeKinds = []storeKind{
	{
		schemes: []string{"mongodb", "mongodb+srv"}, open: opener(mongodb.Open), writers: 2,
		example: "mongodb://user:password@host1,host2/database?replicaSet=rs0",
	},
	{ //nolint:gosec // the password here is an example
		schemes: []string{"postgres", "postgresql"}, open: opener(postgres.Open), writers: 2,
		example: "postgres://user:password@host/database",
	},
	{
		schemes: []string{"redis", "rediss"}, open: opener(redis.Open), writers: 2,
		example: "redis://user:password@host:6379/0, or for a cluster " +
			"redis://user:password@host1:6379,host2:6379/?cluster=true",
	},
	{
		schemes: []string{"sqlite"}, open: opener(sqlite.Open), existing: opener(sqlite.OpenExisting), writers: 1,
		example: "sqlite:/var/lib/carillon.db, on one machine",
	},
	{
		schemes: []string{"memory"}, open: opener(memory.Open), writers: 1, alone: true,
		example: "memory:, for a test",
	},
}

// storeKind is one kind of store.
type storeKind struct {
	// schemes are the schemes of its URLs. The first is its name.
	schemes []string
	// example is a URL.
	example string
	open    openStore
	// existing opens a store that must already exist; nil if open does no harm to a missing one.
	existing openStore
	// writers is the number of concurrent calls that store single submissions. An SQLite file has one writer at a time. On
	// servers, a second call fills the time in which the first waits for an answer; more calls only make the batches
	// smaller.
	writers int
	// alone reports that no other process can reach the store.
	alone bool
}

type openStore func(ctx context.Context, rawURL string) (store.Store, error)

// opener adapts a store's own function. Errors that a retry can't fix become usage errors.
func opener[S store.Store](open func(context.Context, string) (S, error)) openStore {
	return func(ctx context.Context, rawURL string) (store.Store, error) {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		s, err := open(ctx, rawURL)
		switch {
		case err == nil:
			return s, nil
		case errors.Is(err, store.ErrUnavailable):
			return nil, err
		default:
			return nil, cli.Usage(err)
		}
	}
}

// kindOf returns the kind of store that a URL names.
func kindOf(rawURL string) (storeKind, error) {
	scheme, _, _ := strings.Cut(rawURL, ":")
	for _, k := range storeKinds {
		if slices.Contains(k.schemes, scheme) {
			return k, nil
		}
	}
	// The rest of it may be a password.
	return storeKind{}, cli.Usagef("%q is not a kind of store; give %s", scheme, StoreExamples())
}

// StoreExamples returns example URLs of all kinds of stores, as part of a sentence.
func StoreExamples() string {
	var examples []string
	for _, k := range storeKinds {
		examples = append(examples, k.example)
	}
	last := len(examples) - 1
	return strings.Join(examples[:last], "; ") + "; or " + examples[last]
}

// StoreKind returns the name of the kind of store that a URL names; for an unknown kind, the URL's scheme.
func StoreKind(rawURL string) string {
	if k, err := kindOf(rawURL); err == nil {
		return k.schemes[0]
	}
	scheme, _, _ := strings.Cut(rawURL, ":")
	return scheme
}

// OpenStore opens the store that a URL names. An error that a retry can't fix is a [cli.UsageError].
func OpenStore(ctx context.Context, rawURL string) (store.Store, error) {
	k, err := kindOf(rawURL)
	if err != nil {
		return nil, err
	}
	return k.open(ctx, rawURL)
}

// OpenExisting is like OpenStore, but creates no new file.
func OpenExisting(ctx context.Context, rawURL string) (store.Store, error) {
	k, err := kindOf(rawURL)
	if err != nil {
		return nil, err
	}
	if k.existing != nil {
		return k.existing(ctx, rawURL)
	}
	return k.open(ctx, rawURL)
}

// Alone reports whether a URL names a store that no other process can reach.
func Alone(rawURL string) bool {
	k, err := kindOf(rawURL)
	return err == nil && k.alone
}

// writers returns the number of concurrent calls that write to the store.
func writers(rawURL string) int {
	k, _ := kindOf(rawURL) // it is valid: the store was opened by it
	return max(k.writers, 1)
}

// awaitStore calls a function that needs the store. While the store can't be reached, it retries for the duration wait.
// The last attempt may begin at the end of that time.
func awaitStore(ctx context.Context, wait time.Duration, log *slog.Logger, call func() error) error {
	const pause, tell = time.Second, 5 * time.Second
	end := time.Now().Add(wait)
	var told time.Time
	for {
		err := call()
		left := time.Until(end)
		switch {
		case err == nil || !errors.Is(err, store.ErrUnavailable):
			return err
		case ctx.Err() != nil:
			return err
		case wait == 0:
			return fmt.Errorf("%w (is it there, and can it be reached from here? --store-wait=1m would keep trying for a "+
				"minute)",
				err)
		case left <= 0:
			return fmt.Errorf("%w (is it there, and can it be reached from here? it was tried for --store-wait=%s)", err,
				wait)
		case time.Since(told) >= tell:
			log.Warn("the store can't be reached, retrying", "for", left.Round(time.Second), "error", err)
			told = time.Now()
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, left)):
		}
	}
}

// warningsOf returns the faults in a store's configuration. Not all stores can find them.
func warningsOf(s store.Store) func(context.Context) []string {
	w, ok := s.(store.Warner)
	if !ok {
		return func(context.Context) []string { return nil }
	}
	return func(ctx context.Context) []string {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return w.Warnings(ctx)
	}
}
