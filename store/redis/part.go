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

// want asks for the first entries of one sorted set in all shards together: those with a score beyond after and up to
// bound, both in Redis' notation for ranges.
type want struct {
	set
	after, bound string
	limit        int
	// next is the lower bound of the scores that are not due yet. It is empty if the first of these is not requested.
	next string
}

// set names a sorted set of each shard: one of the shard's keys, or the key of a lane.
type set struct {
	key  int
	lane string
}

// of returns the key of the set in a shard.
func (n set) of(s *shard) string { return s.keys[n.key].(string) + n.lane } //nolint:errcheck // they all are

// division is the division of a want among the shards.
type division struct {
	parts []part
	// more reports that more entries are due than the parts include.
	more bool
	// next is the time at which the next entry becomes due, if it was requested and there is more than one shard.
	next time.Time
}

// part is one shard's part of a want.
type part struct {
	shard int
	// n is the number of entries, and bound their greatest score, in Redis' notation.
	n     int
	bound string
	// counted reports that the shard had n such entries a moment ago.
	counted bool
}

// divide asks all shards at once for the due entries of all wants, and divides each want's limit among them so that the
// longest due come first. Among entries that are due at the same time, those of the shard that this replica prefers
// come first, and then those of the shards after it.
//
// If some shards fail, it returns the parts of the others, with the error.
func (s *Store) divide(ctx context.Context, wants []want) (divided []division, err error) {
	divided = make([]division, len(wants))
	if len(s.shards) == 1 { // nothing to divide
		for i, w := range wants {
			divided[i].parts = []part{{n: min(w.limit, chunk), bound: w.bound}}
		}
		return divided, nil
	}
	counts, going := make([]int, len(wants)), make([]int, len(wants))
	for i, w := range wants {
		// One shard's part is rarely much larger than the others'. If it is, all shards are asked for the whole limit.
		counts[i], going[i] = min(w.limit, chunk, max(16, 2*w.limit/len(s.shards))), i
	}
	for len(going) > 0 {
		var asks []ask
		for _, i := range going {
			w := wants[i]
			asks = append(asks, ask{w.set, redis.ZRangeBy{Min: w.after, Max: w.bound, Count: int64(counts[i])}})
			if w.next != "" {
				asks = append(asks, ask{w.set, redis.ZRangeBy{Min: w.next, Max: "+inf", Count: 1}})
			}
		}
		var found [][][]redis.Z
		found, err = s.heads(ctx, asks)
		var again []int
		for _, i := range going {
			w, most := wants[i], min(wants[i].limit, chunk)
			chosen, more := s.choose(found[0], counts[i], w.limit)
			divided[i] = division{parts: partsOf(chosen), more: more}
			found = found[1:]
			if w.next != "" {
				divided[i].next, found = firstOf(found[0]), found[1:]
			}
			if more && len(chosen) < most/2 && counts[i] < most {
				counts[i] = most
				again = append(again, i)
			}
		}
		going = again
	}
	return divided, err
}

// partsOf groups the chosen entries by shard.
func partsOf(chosen []entry) (parts []part) {
	byShard := make(map[int]*part)
	for _, e := range chosen {
		of := byShard[e.shard]
		if of == nil {
			of = &part{shard: e.shard, counted: true}
			byShard[e.shard] = of
		}
		of.n++
		of.bound = strconv.FormatInt(int64(e.score), 10) // they come in order
	}
	for _, of := range byShard {
		parts = append(parts, *of)
	}
	return parts
}

// firstOf returns the earliest time in the shards' answers; zero if there is none.
func firstOf(found [][]redis.Z) (first time.Time) {
	for _, of := range found {
		if len(of) > 0 {
			first = earliest(first, scoreTime(of[0].Score))
		}
	}
	return first
}

// scoreTime reads a time that is a score.
func scoreTime(score float64) time.Time { return time.UnixMilli(int64(score)).UTC() }

// earliest returns the earlier of two times; a zero time is ignored.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// entry is a due entry of a shard.
type entry struct {
	score float64
	shard int
}

// choose picks the first entries of all shards' answers, up to the limit. A shard whose answer has count entries may
// have more, which are unknown: so entries after that answer's last one are left out.
func (s *Store) choose(due [][]redis.Z, count, limit int) (chosen []entry, more bool) {
	var all []entry
	known, cut := 0.0, false
	for i, entries := range due {
		for _, e := range entries {
			all = append(all, entry{e.Score, i})
		}
		if len(entries) == count && (!cut || entries[count-1].Score < known) {
			known, cut = entries[count-1].Score, true
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

// ask is a query for a range of a sorted set of each shard.
type ask struct {
	set
	by redis.ZRangeBy
}

// heads reads ranges of sorted sets of all shards at once. Its result has, for each ask, the entries of each shard.
func (s *Store) heads(ctx context.Context, asks []ask) (found [][][]redis.Z, err error) {
	commands, err := askAll(ctx, s, func(ctx context.Context, pipe redis.Pipeliner, of *shard) (all []*redis.ZSliceCmd) {
		for i := range asks {
			all = append(all, pipe.ZRangeByScoreWithScores(ctx, asks[i].of(of), &asks[i].by))
		}
		return all
	})
	found = make([][][]redis.Z, len(asks))
	for i := range found {
		found[i] = make([][]redis.Z, len(s.shards))
		for k, of := range commands {
			if len(of) > 0 {
				found[i][k] = of[i].Val()
			}
		}
	}
	return found, err
}

// askAll sends read-only commands to all shards at once and returns each shard's commands, with their answers. A shard
// that did not answer in time is skipped for a while, unless all shards are. The error is that of a failed shard; the
// answers of the others are valid.
func askAll[C redis.Cmder](
	ctx context.Context, s *Store, queue func(context.Context, redis.Pipeliner, *shard) []C,
) (commands [][]C, err error) {
	asking := ctx
	if len(s.shards) > 1 {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, s.headsWithin)
		defer cancel()
	}
	commands = make([][]C, len(s.shards))
	present := s.present()
	s.eachNode(asking, len(present), func(k int) int { return present[k] }, func(part []int) {
		pipe := s.client.Pipeline()
		for _, k := range part {
			commands[present[k]] = queue(asking, pipe, &s.shards[present[k]])
		}
		_, _ = pipe.Exec(asking) // each command has its own error
	})
	for i, of := range commands {
		if len(of) == 0 {
			err = fmt.Errorf("%w: a node of the cluster did not answer a moment ago", store.ErrUnavailable)
		}
		for _, command := range of {
			failure := command.Err()
			if failure == nil {
				continue
			}
			err = mapError(failure)
			if late, ok := errors.AsType[net.Error](failure); ok && late.Timeout() && ctx.Err() == nil {
				s.shards[i].away.Store(int64(monotonic() + 3*s.headsWithin))
			}
		}
	}
	return commands, err
}

// present returns the shards to ask: those that are not away, or all if all are away.
func (s *Store) present() []int {
	now := int64(monotonic())
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
