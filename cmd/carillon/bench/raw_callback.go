package bench

import (
	"context"
	"time"
)

// limit is what bounds a drain with one callback type.
type limit interface {
	// Run answers how many in a second the bare client does of the work.
	Run(ctx context.Context, w *Work) (perSecond float64, err error)
	// Name is what it is, in few words, and About what it does exactly.
	Name() string
	About() string
	// Goal is what is to be reached of it.
	Goal() *goal
	Close(ctx context.Context) error
}

// openRawCallback opens what bounds a drain: the store if callbacks cost nothing.
func (b *Bench) openRawCallback(ctx context.Context) (limit, error) {
	raw, err := b.openRaw(ctx)
	if err != nil {
		return nil, err
	}
	return &storeLimit{rawStore: raw, workers: 1}, nil
}

// storeLimit is a store's bare claiming and deleting.
type storeLimit struct {
	rawStore
	workers int
}

func (l *storeLimit) Run(ctx context.Context, w *Work) (float64, error) {
	if err := l.Fill(ctx, w); err != nil {
		return 0, err
	}
	start := time.Now()
	n, err := l.Drain(ctx, l.workers)
	return float64(n) / time.Since(start).Seconds(), err
}

func (l *storeLimit) Name() string { return "claim and delete" }

func (l *storeLimit) About() string {
	return "the store's own client claims 1,000 rows by one write that reads their payloads, and deletes them by another, on rows with a unique key in no order and an index of due times"
}

func (l *storeLimit) Goal() *goal { return ratioOf(0.5) }
