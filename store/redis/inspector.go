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

// DueLanes implements [store.Inspector]. It reads the lanes' heads from all shards at once. If some shards fail, it
// returns the lanes of the others, with the error.
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (page store.DuePage, err error) {
	after, until, limit := p.After, p.Until.UnixMilli(), min(p.Limit, chunk)
	commands, err := askAll(ctx, s, func(ctx context.Context, pipe redis.Pipeliner, of *shard) []*redis.Cmd {
		keys := []string{set{key: keyHeads}.of(of), set{key: keyLanes}.of(of), set{key: keyPending}.of(of)}
		return []*redis.Cmd{pipe.Eval(ctx, dueLanesScript, keys, after.DueAt.UnixMilli(), after.Lane.String(), until, limit)}
	})
	var all []store.LaneDue
	for _, of := range commands {
		for _, command := range of { // at most one
			answer := asList(command.Val())
			var last store.LaneDue
			for i := 0; i < len(answer); i += 2 {
				lane, damaged := job.ParseLane(answer.text(i))
				if damaged != nil {
					err = damaged
					continue
				}
				last = store.LaneDue{Lane: lane, DueAt: answer.score(i + 1)}
				all = append(all, last)
			}
			if full := len(answer) >= 2*limit; full && (page.Next == (store.LaneDue{}) || last.Compare(page.Next) < 0) {
				page.Next = last // this shard's later lanes are unknown
			}
		}
	}
	slices.SortFunc(all, store.LaneDue.Compare)
	told := make(map[job.Lane]bool)
	for _, l := range all {
		if page.Next != (store.LaneDue{}) && l.Compare(page.Next) > 0 {
			break
		}
		if told[l.Lane] {
			continue
		}
		if len(page.Lanes) == limit {
			page.Next = page.Lanes[limit-1]
			break
		}
		told[l.Lane], page.Lanes = true, append(page.Lanes, l)
	}
	return page, err
}

// Count implements [store.Inspector]. Redis stores the size of a sorted set, and counts the entries up to a score by
// its index, so the limit bounds only the result.
func (s *Store) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) == 0 {
		all, err := s.countAll(ctx, now)
		return []store.Count{all}, err
	}
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
	counts := make([]store.Count, len(lanes))
	for i, r := range s.run(ctx, calls) {
		answer, err := r.list()
		if err != nil { // see countAll
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
		counts[i] = store.Count{Pending: min(counts[i].Pending, limit), Due: min(counts[i].Due, limit)}
	}
	return counts, nil
}

// Sample implements [store.Inspector]. If there are several shards, it first reads their due times, so that no shard
// reads more than its part of the sample.
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	begin := strconv.FormatInt(from.UnixMilli(), 10)
	parts := []part{{n: limit}}
	if len(s.shards) > 1 {
		asked := ask{set{keyPending, lane.String()}, redis.ZRangeBy{Min: begin, Max: "+inf", Count: int64(limit)}}
		found, err := s.heads(ctx, []ask{asked})
		if err != nil { // see countAll
			return nil, err
		}
		chosen, _ := s.choose(found[0], limit, limit)
		parts = partsOf(chosen)
	}
	calls := make([]call, len(parts))
	for i, part := range parts {
		calls[i] = call{sampleScript, part.shard, []any{lane.String(), begin, part.n}}
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
			targets[1+i], _ = decodeTarget(texts.text(i)) // the options don't matter, and an unreadable target is zero
		}
		for i := range dues {
			all = append(all, store.Sampled{DueAt: dues.score(i), Callback: targets[places.number(i)].Callback})
		}
	}
	slices.SortStableFunc(all, func(a, b store.Sampled) int { return a.DueAt.Compare(b.DueAt) })
	return all, nil
}

// countAll counts the occurrences and dead letters of the whole store. It asks all shards at once. The cost grows with
// the number of lanes with due occurrences, not with the number of occurrences. Each shard's counts are exact and of
// one moment, unless more than chunk lanes are due.
func (s *Store) countAll(ctx context.Context, now time.Time) (c store.Count, err error) {
	var calls []call
	for i := range s.shards {
		calls = append(calls, call{countAllScript, i, []any{now.UnixMilli(), 0, chunk}})
	}
	for first := 0; len(calls) > 0; first += chunk {
		var more []call
		for i, r := range s.run(ctx, calls) {
			answer, err := r.list()
			if err != nil { // a count without this shard would look like the whole count
				return store.Count{}, err
			}
			if first == 0 {
				c.Pending += answer.number(0)
				c.DeadLetters += answer.number(2)
			}
			c.Due += answer.number(1)
			if answer.number(3) == chunk {
				more = append(more, call{countAllScript, calls[i].shard, []any{now.UnixMilli(), first + chunk, chunk}})
			}
		}
		calls = more
	}
	return c, nil
}
