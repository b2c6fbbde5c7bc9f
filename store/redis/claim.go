package redis

import (
	"cmp"
	"context"
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
		args := []any{share.bound, share.n, p.Now.UnixMilli(), until.UnixMilli(), token, bound, chunk}
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
		taken, aside := answer.list(0), answer.list(1)
		targets := readTargets(answer.list(2))
		for k := range taken {
			c, due := readClaimed(taken.list(k), targets)
			c.Token, c.ScheduledAt, c.DueAt = token, p.Now, until
			claim.Occurrences, dues = append(claim.Occurrences, c), append(dues, due)
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

// target is what occurrences fire with, or why that can't be read.
type target struct {
	job.Target
	fault error
}

// readTargets reads the targets that a claim comes with, each once, however many occurrences have it.
func readTargets(l list) map[string]target {
	targets := make(map[string]target, len(l)/2)
	for i := 0; i < len(l); i += 2 {
		var t target
		t.Target, t.fault = decodeTarget(l.text(i + 1))
		targets[l.text(i)] = t
	}
	return targets
}

// readClaimed reads one claimed occurrence, and when it was due.
func readClaimed(l list, targets map[string]target) (c store.Claimed, due int) {
	c.Occurrence, c.Fault = decodeOccurrence(l.text(0), l.text(1))
	c.LastError, c.Attempt, c.Reclaimed = l.text(2), l.number(4), l.number(5) > 0
	name := jobField(c.Name)
	if c.Revision == "" {
		name = l.text(0)
	}
	t := targets[name]
	if c.Target = t.Target; c.Fault == nil {
		c.Fault = t.fault
	}
	if c.Revision == "" {
		c.Own = &t.Target
	}
	return c, l.number(3)
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
