package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue]: one script on each shard that has what is due. If there are several shards, they are first
// asked what that is, so that the longest due comes first.
//
// If a shard's node fails, what the others gave is claimed all the same.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	bound := strconv.FormatInt(p.Now.Add(p.Early).UnixMilli(), 10)
	shares, more, err := s.share(ctx, keyPending, bound, p.Limit)
	if len(shares) == 0 {
		return store.Claim{}, err
	}
	token, until := job.NewToken(), p.Now.Add(p.Lease)
	calls := make([]call, len(shares))
	for i, share := range shares {
		args := []any{share.bound, share.n, p.Now.UnixMilli(), until.UnixMilli(), token, bound, chunk, flag(len(shares) > 1)}
		calls[i] = call{claimScript, share.shard, args}
	}
	claim := store.Claim{More: more}
	found := 0
	var dues []int
	for i, r := range s.run(ctx, calls) {
		answer, failure := r.list()
		if failure != nil {
			err = failure
			continue
		}
		taken, aside := readTaken(answer), answer.list(4)
		for k := range taken {
			taken[k].Token, taken[k].ScheduledAt, taken[k].DueAt = token, p.Now, until
		}
		claim.Occurrences = append(claim.Occurrences, taken...)
		if len(shares) > 1 {
			for k := range taken {
				dues = append(dues, answer.list(2).number(k))
			}
		}
		s.putBack(ctx, p, shares[i].shard, aside)
		found += len(taken) + len(aside)
		if len(aside) > 0 || shares[i].counted && len(taken) < shares[i].n {
			claim.More = true
		}
	}
	claim.More = claim.More || found >= min(p.Limit, chunk)
	if len(claim.Occurrences) == 0 {
		return store.Claim{More: claim.More}, err
	}
	if len(shares) > 1 {
		claim.Occurrences = inOrder(claim.Occurrences, dues)
	}
	return claim, nil
}

// readTaken reads what claim.lua answers of the claimed.
func readTaken(answer list) []store.Claimed {
	ids, records, before := answer.list(0), answer.list(1), answer.list(3)
	targets := readTargets(ids, records, answer.list(5))
	taken := make([]store.Claimed, len(ids))
	for i := range taken {
		c := &taken[i]
		c.Occurrence, c.Fault = decodeOccurrence(ids.text(i), records.text(i))
		c.Attempt = 1
		t := targets[i]
		if c.Target = t.Target; c.Fault == nil {
			c.Fault = t.fault
		}
		if c.Revision == "" {
			c.Own = &t.Target
		}
	}
	for i := range before {
		of := before.list(i)
		if place := of.number(0) - 1; place >= 0 && place < len(taken) {
			c := &taken[place]
			c.Attempt, c.Reclaimed, c.LastError = of.number(1), of.number(2) > 0, of.text(3)
		}
	}
	return taken
}

// target is what occurrences fire with, or why that can't be read.
type target struct {
	job.Target
	fault error
}

// readTargets answers each claimed occurrence's target. Those that it is given come in the order in which they are first
// needed, and are read once, however many occurrences have one.
func readTargets(ids, records, answer list) []*target {
	all := make([]target, len(answer))
	for i := range all {
		all[i].Target, all[i].fault = decodeTarget(answer.text(i))
	}
	targets := make([]*target, len(ids))
	known := make(map[string]*target)
	next := 0
	for i := range targets {
		if len(all) == len(ids) { // each has its own
			targets[i] = &all[i]
			continue
		}
		owner, name := ids.text(i), recordOwner(records.text(i))
		if name != "" {
			owner = name
		}
		if known[owner] == nil && next < len(all) {
			known[owner] = &all[next]
			next++
		}
		if targets[i] = known[owner]; targets[i] == nil {
			targets[i] = &target{fault: fmt.Errorf("the callback of the occurrence %s is missing", ids.text(i))}
		}
	}
	return targets
}

// inOrder sorts what several shards gave by when it was due.
func inOrder(claimed []store.Claimed, dues []int) []store.Claimed {
	order := make([]int, len(claimed))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(dues[a], dues[b]) })
	sorted := make([]store.Claimed, len(claimed))
	for i, from := range order {
		sorted[i] = claimed[from]
	}
	return sorted
}

// putBack puts back what a claim has set aside, or drops it. What it fails for is due again when the claim would end.
func (s *Store) putBack(ctx context.Context, p store.ClaimParams, shard int, aside list) {
	if len(aside) == 0 {
		return
	}
	args := []any{p.Now.Add(p.Lease).UnixMilli()}
	for i := range aside {
		id, why := aside.list(i).text(0), aside.list(i).text(2)
		o, err := decodeOccurrence(id, aside.list(i).text(1))
		var dueAt time.Time
		var drop bool
		switch why {
		case "paused":
			dueAt = store.PutBackPaused(o.Timestamp, aside.list(i).millis(3), p)
		case "unexpanded":
			dueAt = store.PutBackUnexpanded(p.Now)
		default:
			if dueAt, drop = store.PutBack(o.Revision, p.Now); err != nil {
				dueAt = p.Now.Add(time.Hour) // nobody can tell what it is of; it is left where somebody can look at it
			}
		}
		if drop {
			args = append(args, id, "", 0)
		} else {
			args = append(args, id, dueAt.UnixMilli(), flag(why == "paused"))
		}
	}
	_ = s.run(ctx, []call{{putBackScript, shard, args}})
}

// NextDue implements [store.Queue]: it asks all shards at once for one entry each.
func (s *Store) NextDue(ctx context.Context) (time.Time, error) {
	heads, err := s.heads(ctx, keyPending, &redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: 1})
	if err != nil {
		return time.Time{}, err
	}
	var next time.Time
	for _, head := range heads {
		if len(head) > 0 {
			if at := time.UnixMilli(int64(head[0])).UTC(); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next, nil
}
