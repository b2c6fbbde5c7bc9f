package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
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

// heads reads the scores of the first entries of a sorted set of each shard, all at once. A shard that fails has none, and
// one that did not answer in time is passed over for a while, but for the case that all of them did not.
func (s *Store) heads(ctx context.Context, key int, by *redis.ZRangeBy) (scores [][]float64, err error) {
	asking := ctx
	if len(s.shards) > 1 {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, headsWithin)
		defer cancel()
	}
	commands := make([]*redis.ZSliceCmd, len(s.shards))
	present := s.present()
	s.eachNode(asking, len(present), func(k int) int { return present[k] }, func(part []int) {
		pipe := s.client.Pipeline()
		for _, k := range part {
			i := present[k]
			commands[i] = pipe.ZRangeByScoreWithScores(asking, s.shards[i].keys[key].(string), by) //nolint:errcheck // they all are
		}
		_, _ = pipe.Exec(asking) // each command has its own error
	})
	scores = make([][]float64, len(commands))
	for i, command := range commands {
		if command == nil {
			err = fmt.Errorf("%w: a node of the cluster did not answer a moment ago", store.ErrUnavailable)
			continue
		}
		found, failure := command.Result()
		if failure != nil {
			err = mapError(failure)
			if late, ok := errors.AsType[net.Error](failure); ok && late.Timeout() && ctx.Err() == nil {
				s.shards[i].away.Store(time.Now().Add(awayFor).UnixMilli())
			}
			continue
		}
		for _, z := range found {
			scores[i] = append(scores[i], z.Score)
		}
	}
	return scores, err
}

// present are the shards that are to be asked: those that are not away, or all if they all are.
func (s *Store) present() []int {
	now := time.Now().UnixMilli()
	var all, present []int
	for i := range s.shards {
		all = append(all, i)
		if s.shards[i].away.Load() <= now {
			present = append(present, i)
		}
	}
	if len(present) == 0 {
		return all
	}
	return present
}
