package redis

import (
	"context"
	"slices"

	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]: deliveries are deleted by one script for each shard, and every other settlement is a
// script of its own.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	acks := make([][]any, len(s.shards))
	var calls []call
	for i := range settlements {
		t := &settlements[i]
		shard := s.shardOf(t.Name)
		if t.Outcome == store.Ack {
			acks[shard] = append(acks[shard], t.ID.String(), t.Token)
			continue
		}
		calls = append(calls, call{settleScript, shard, settlementArgs(t)})
	}
	for shard, args := range acks {
		for part := range slices.Chunk(args, 2*chunk) {
			calls = append(calls, call{ackScript, shard, part})
		}
	}
	return firstError(s.run(ctx, calls))
}

// settlementArgs are what settle.lua takes.
func settlementArgs(t *store.Settlement) []any {
	at, target := t.DueAt, ""
	var outcome string
	switch t.Outcome {
	case store.Retry:
		outcome = "retry"
	case store.Release:
		outcome = "release"
	case store.Miss:
		outcome = "miss"
	default:
		outcome, at, target = "bury", t.At, encodeTarget(t.Target.Callback, t.Target.Options)
	}
	return []any{t.ID.String(), t.Token, outcome, at.UnixMilli(), t.Error, millis(t.KeepUntil), target}
}
