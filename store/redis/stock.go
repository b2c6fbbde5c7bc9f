package redis

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Lanes implements [store.Stock]: it asks all shards at once for their lanes. If some fail, it answers the lanes of the others,
// with the error.
func (s *Store) Lanes(ctx context.Context) ([]store.LaneDue, error) {
	commands, err := askAll(ctx, s, func(ctx context.Context, pipe redis.Pipeliner, of *shard) []*redis.Cmd {
		return []*redis.Cmd{pipe.Eval(ctx, lanesScript, []string{set{key: keyLanes}.of(of), set{key: keyPending}.of(of)})}
	})
	due := make(map[string]time.Time)
	for _, of := range commands {
		for _, command := range of { // at most one
			answer := asList(command.Val())
			for i := 0; i < len(answer); i += 2 {
				lane := answer.text(i)
				due[lane] = earliest(due[lane], answer.score(i+1))
			}
		}
	}
	lanes := make([]store.LaneDue, 0, len(due))
	for text, at := range due {
		lane, damaged := job.ParseLane(text)
		if damaged != nil {
			err = damaged
			continue
		}
		lanes = append(lanes, store.LaneDue{Lane: lane, DueAt: at})
	}
	return lanes, err
}

// CountLanes implements [store.Stock]. Redis knows how many entries a sorted set has, and counts those up to a score by its
// index, so that the limit bounds only what is answered.
func (s *Store) CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.LaneCount, error) {
	var calls []call
	for part := range slices.Chunk(lanes, chunk) {
		args := []any{now.UnixMilli()}
		for _, l := range part {
			args = append(args, l.String())
		}
		for shard := range s.shards {
			calls = append(calls, call{countLanesScript, shard, args})
		}
	}
	counts := make([]store.LaneCount, len(lanes))
	for i, r := range s.run(ctx, calls) {
		answer, err := r.list()
		if err != nil { // see Backlog
			return nil, err
		}
		part := counts[i/len(s.shards)*chunk:]
		for k := 0; k < len(answer); k += 3 {
			c := &part[answer.number(k)-1]
			c.Pending += answer.number(k + 1)
			c.Due += answer.number(k + 2)
		}
	}
	for i := range counts {
		counts[i] = store.LaneCount{Pending: min(counts[i].Pending, limit), Due: min(counts[i].Due, limit)}
	}
	return counts, nil
}

// Sample implements [store.Stock]. If there are several shards, they are first asked what becomes due when, so that none reads
// more than its part of the first.
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	begin := strconv.FormatInt(from.UnixMilli(), 10)
	shares := []share{{n: limit}}
	if len(s.shards) > 1 {
		asked := ask{set{keyPending, lane.String()}, redis.ZRangeBy{Min: begin, Max: "+inf", Count: int64(limit)}}
		found, err := s.heads(ctx, []ask{asked})
		if err != nil { // see Backlog
			return nil, err
		}
		chosen, _ := s.choose(found[0], limit, limit)
		shares = sharesOf(chosen)
	}
	calls := make([]call, len(shares))
	for i, sh := range shares {
		calls[i] = call{sampleScript, sh.shard, []any{lane.String(), begin, sh.n}}
	}
	var all []store.Sampled
	for _, r := range s.run(ctx, calls) {
		answer, err := r.list()
		if err != nil {
			return nil, err
		}
		dues, places, texts := answer.list(0), answer.list(1), answer.list(2)
		targets := make([]job.Target, 1+len(texts)) // the first is none
		for i := range texts {
			targets[1+i], _ = decodeTarget(texts.text(i)) // the options don't matter, and what can't be read at all is zero
		}
		for i := range dues {
			all = append(all, store.Sampled{DueAt: dues.score(i), Callback: targets[places.number(i)].Callback})
		}
	}
	slices.SortStableFunc(all, func(a, b store.Sampled) int { return a.DueAt.Compare(b.DueAt) })
	return all, nil
}

// Backlog implements [store.Stock]. It asks all shards at once; what that costs grows with the lanes and not with the
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
