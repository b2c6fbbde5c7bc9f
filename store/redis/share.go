package redis

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// share is what one shard is to give of what is due in all of them.
type share struct {
	shard int
	// n is how many, and bound up to which score, as Redis takes it.
	n     int
	bound string
	// counted tells that there were so many a moment ago.
	counted bool
}

// share asks all shards at once what is due in one of their sorted sets, up to a bound, and divides the limit among them so
// that the longest due come first. More tells that more are due. What is due at the same time is taken from the shard that
// this replica prefers, and the ones after it.
//
// If some shards fail, it answers the shares of the others, with the error.
func (s *Store) share(ctx context.Context, key int, bound string, limit int) (shares []share, more bool, err error) {
	if len(s.shards) == 1 { // nothing to divide
		return []share{{n: min(limit, chunk), bound: bound}}, false, nil
	}
	// A shard is rarely to give much more than the others. If one is, it is asked for all.
	most := min(limit, chunk)
	count := min(most, max(16, 2*limit/len(s.shards)))
	due, err := s.heads(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: bound, Count: int64(count)})
	chosen, more := s.choose(due, count, limit)
	if more && len(chosen) < most/2 && count < most {
		count = most
		due, err = s.heads(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: bound, Count: int64(count)})
		chosen, more = s.choose(due, count, limit)
	}
	byShard := make(map[int]*share)
	for _, e := range chosen {
		of := byShard[e.shard]
		if of == nil {
			of = &share{shard: e.shard, counted: true}
			byShard[e.shard] = of
		}
		of.n++
		of.bound = strconv.FormatInt(int64(e.score), 10) // they come in order
	}
	for _, of := range byShard {
		shares = append(shares, *of)
	}
	return shares, more, err
}

// entry is one that is due.
type entry struct {
	score float64
	shard int
}

// choose picks the first of what all shards have answered, up to the limit. A shard that answered as many as it was asked
// for may have more, of which nothing is known: so what is due after the last of those is left.
func (s *Store) choose(due [][]float64, count, limit int) (chosen []entry, more bool) {
	var all []entry
	known, cut := 0.0, false
	for i, scores := range due {
		for _, score := range scores {
			all = append(all, entry{score, i})
		}
		if len(scores) == count && (!cut || scores[count-1] < known) {
			known, cut = scores[count-1], true
		}
	}
	n := len(s.shards)
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare((a.shard-s.first+n)%n, (b.shard-s.first+n)%n))
	})
	for i, e := range all {
		if i == limit || cut && e.score > known {
			return all[:i], true
		}
	}
	return all, cut
}

// heads reads the scores of the first entries of a sorted set of each shard, all at once. A shard that fails has none.
func (s *Store) heads(ctx context.Context, key int, by *redis.ZRangeBy) (scores [][]float64, err error) {
	pipe := s.client.Pipeline()
	commands := make([]*redis.ZSliceCmd, len(s.shards))
	for i := range s.shards {
		commands[i] = pipe.ZRangeByScoreWithScores(ctx, s.shards[i].keys[key].(string), by) //nolint:errcheck // they all are
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	scores = make([][]float64, len(commands))
	for i, command := range commands {
		found, failure := command.Result()
		if failure != nil {
			err = mapError(failure)
			continue
		}
		for _, z := range found {
			scores[i] = append(scores[i], z.Score)
		}
	}
	return scores, err
}
