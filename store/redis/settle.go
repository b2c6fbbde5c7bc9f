package redis

import (
	"context"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]: deliveries are deleted by one script for each shard, and every other settlement is a
// script of its own.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	acks := make([]ackArgs, len(s.shards))
	var calls []call
	for i := range settlements {
		t := &settlements[i]
		shard := s.shardOf(t.Name)
		if t.Outcome != store.Ack {
			calls = append(calls, call{settleScript, shard, settlementArgs(t)})
			continue
		}
		if acks[shard].n == chunk {
			calls = append(calls, call{ackScript, shard, acks[shard].args})
			acks[shard] = ackArgs{}
		}
		acks[shard].add(t, len(settlements))
	}
	for shard := range acks {
		if acks[shard].n > 0 {
			calls = append(calls, call{ackScript, shard, acks[shard].args})
		}
	}
	return firstError(s.run(ctx, calls))
}

// ackArgs gathers the arguments of ack.lua.
type ackArgs struct {
	args  []any
	n     int      // deliveries
	token string   // of the last ones
	lane  job.Lane // of the last ones
	count int      // index of their number
}

// add adds a delivery. Consecutive deliveries of one claim and lane share its token. Room is the largest number of
// deliveries.
func (a *ackArgs) add(t *store.Settlement, room int) {
	if a.args == nil {
		a.args = make([]any, 0, min(room, chunk)+3)
	}
	if lane := (job.Lane{Tenant: t.Name.Tenant, Priority: t.Priority}); a.n == 0 || a.token != t.Token || a.lane != lane {
		a.args = append(a.args, t.Token, lane.String(), 0)
		a.token, a.lane, a.count = t.Token, lane, len(a.args)-1
	}
	a.args = append(a.args, string(t.Revision)+":"+t.ID.String())
	a.n++
	a.args[a.count] = len(a.args) - 1 - a.count
}

// settlementArgs returns the arguments of settle.lua.
func settlementArgs(t *store.Settlement) []any {
	at, target, trouble := t.DueAt, "", ""
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
	if t.Outcome == store.Miss || t.Outcome == store.Bury {
		trouble = t.Trouble().Encode()
	}
	return []any{t.ID.String(), t.Token, outcome, at.UnixMilli(), t.Error, millis(t.KeepUntil), target, trouble}
}
