package redis

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// Backlog implements [store.Queue]. It asks all shards at once; what that costs grows with the lanes and not with the
// occurrences. Each shard's answers are exact, and of one moment.
func (s *Store) Backlog(ctx context.Context, now time.Time) (store.Backlog, error) {
	calls := make([]call, len(s.shards))
	for i := range calls {
		calls[i] = call{backlogScript, i, []any{now.UnixMilli()}}
	}
	var b store.Backlog
	for _, r := range s.run(ctx, calls) {
		answer, err := r.list()
		if err != nil { // of any of them: a part of it would pass for the whole
			return store.Backlog{}, err
		}
		b.Pending += answer.number(0)
		b.Due += answer.number(1)
		b.DeadLetters += answer.number(3)
		if answer.text(2) != "" {
			b.OldestDue = earliest(b.OldestDue, answer.score(2))
		}
	}
	return b, nil
}
