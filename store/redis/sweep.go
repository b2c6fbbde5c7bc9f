package redis

import (
	"context"
	"slices"
	"strconv"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Sweep implements [store.Queue].
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (swept store.Swept, err error) {
	now := strconv.FormatInt(p.Now.UnixMilli(), 10)
	divided, err := s.divide(ctx, []want{{set: set{key: keyExpiry}, after: "-inf", bound: now, limit: p.Limit}})
	if err != nil {
		return swept, err
	}
	parts := divided[0].parts
	calls := make([]call, len(parts))
	for i, part := range parts {
		calls[i] = call{sweepScript, part.shard, []any{part.bound, part.n, p.Now.Add(p.Again).UnixMilli()}}
	}
	looked := 0
	for _, r := range s.run(ctx, calls) {
		answer, err := r.list()
		if err != nil {
			return swept, err
		}
		swept.Jobs += answer.number(0)
		looked += answer.number(1)
	}
	swept.More = divided[0].more || looked >= min(p.Limit, chunk)
	limit := min(p.Limit, chunk)
	swept.Records, err = s.run(ctx, []call{{sweepRecordsScript, noShard, []any{p.Now.UnixMilli(), limit}}})[0].number()
	if err != nil {
		return swept, err
	}
	swept.More = swept.More || swept.Records == limit
	if p.FailedBefore.IsZero() {
		return swept, nil
	}
	err = s.sweepDeadLetters(ctx, p, &swept)
	return swept, err
}

func (s *Store) sweepDeadLetters(ctx context.Context, p store.SweepParams, swept *store.Swept) error {
	last := strconv.FormatInt(p.FailedBefore.UnixMilli()-1, 10)
	divided, err := s.divide(ctx, []want{{set: set{key: keyDead}, after: "-inf", bound: last, limit: p.Limit}})
	if err != nil {
		return err
	}
	parts := divided[0].parts
	calls := make([]call, len(parts))
	for i, part := range parts {
		calls[i] = call{discardScript, part.shard, []any{"", part.bound, part.n}}
	}
	n, err := s.sum(ctx, calls)
	swept.DeadLetters = n
	swept.More = swept.More || divided[0].more || n >= min(p.Limit, chunk)
	return err
}

// SettleDead implements [store.Jobs]. An id does not show its shard, so the script runs on all shards.
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	if d.Outcome == store.Discard {
		return s.sum(ctx, s.everywhere(discardScript, d.IDs, d.Tenant))
	}
	return s.sum(ctx, s.everywhere(redriveScript, d.IDs, d.Tenant, d.Now.UnixMilli()))
}

// everywhere returns calls of a script on all shards, with these arguments followed by the ids.
func (s *Store) everywhere(script *script, ids []job.ID, args ...any) (calls []call) {
	for part := range slices.Chunk(ids, chunk) {
		all := args[:len(args):len(args)]
		for _, id := range part {
			all = append(all, id.String())
		}
		for shard := range s.shards {
			calls = append(calls, call{script, shard, all})
		}
	}
	return calls
}

// sum runs scripts that return the number of documents that they changed, and returns the total. With an error, the
// total is that of the scripts that succeeded.
func (s *Store) sum(ctx context.Context, calls []call) (total int, err error) {
	replies := s.run(ctx, calls)
	for _, r := range replies {
		n, _ := r.number()
		total += n
	}
	return total, firstError(replies)
}
