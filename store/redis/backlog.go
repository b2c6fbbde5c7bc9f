package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

// Backlog implements [store.Queue]. It asks all shards at once, in commands that cost the same however much there is, and each
// shard's answers are exact.
func (s *Store) Backlog(ctx context.Context, now time.Time) (store.Backlog, error) {
	bound := strconv.FormatInt(now.UnixMilli(), 10)
	type answers struct {
		pending, due, dead *redis.IntCmd
		oldest             *redis.ZSliceCmd
	}
	all := make([]answers, len(s.shards))
	pipe := s.client.Pipeline()
	for i := range s.shards {
		pending, dead := s.shards[i].keys[keyPending].(string), s.shards[i].keys[keyDead].(string) //nolint:errcheck // they all are
		all[i] = answers{
			pending: pipe.ZCard(ctx, pending),
			due:     pipe.ZCount(ctx, pending, "-inf", bound),
			oldest:  pipe.ZRangeByScoreWithScores(ctx, pending, &redis.ZRangeBy{Min: "-inf", Max: bound, Count: 1}),
			dead:    pipe.ZCard(ctx, dead),
		}
	}
	if _, err := pipe.Exec(ctx); err != nil { // of any of them: a part of it would pass for the whole
		return store.Backlog{}, mapError(err)
	}
	var b store.Backlog
	for _, a := range all {
		b.Pending += int(a.pending.Val())
		b.Due += int(a.due.Val())
		b.DeadLetters += int(a.dead.Val())
		for _, z := range a.oldest.Val() {
			if at := time.UnixMilli(int64(z.Score)).UTC(); b.OldestDue.IsZero() || at.Before(b.OldestDue) {
				b.OldestDue = at
			}
		}
	}
	return b, nil
}
