package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue]. It runs one script for all quotas on each shard with due occurrences, or several if
// the quotas add up to more than a script may claim. If there are several shards, it first asks all of them for due
// times, so that the longest due come first.
//
// If a shard's node fails, the occurrences of the other shards are claimed all the same, and every quota is marked as
// having more.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	wants := make([]want, len(p.Quotas))
	for i, q := range p.Quotas {
		after, until := p.Range(q)
		wants[i] = want{
			set: set{keyPending, q.Lane.String()}, limit: q.Limit,
			after: "-inf", bound: strconv.FormatInt(until.UnixMilli(), 10),
			next: "(" + strconv.FormatInt(p.Due().UnixMilli(), 10),
		}
		if !after.IsZero() {
			wants[i].after = "(" + strconv.FormatInt(after.UnixMilli(), 10)
		}
	}
	divided, err := s.divide(ctx, wants)
	c := claiming{params: p, token: job.NewToken(), wants: wants, divided: divided}
	c.claim.Quotas = make([]store.QuotaLeft, len(wants))
	for i, d := range divided {
		c.claim.Quotas[i] = store.QuotaLeft{More: d.more, Next: d.next}
	}
	runs := c.runs()
	calls := make([]call, len(runs))
	for i, r := range runs {
		calls[i] = call{claimScript, r.shard, r.args}
	}
	for i, r := range s.run(ctx, calls) {
		answer, failure := r.list()
		if failure != nil {
			err = failure
			continue
		}
		c.read(runs[i], answer)
		s.putBack(ctx, p, runs[i].shard, answer.list(4))
	}
	for i := range c.claim.Quotas {
		left := &c.claim.Quotas[i]
		left.More = left.More || err != nil || left.Found >= min(p.Quotas[i].Limit, chunk)
	}
	if len(c.claim.Occurrences) == 0 {
		return c.claim, err
	}
	if len(runs) > 1 {
		c.sort()
	}
	return c.claim, nil
}

// claiming is one claim under way.
type claiming struct {
	params  store.ClaimParams
	token   string
	wants   []want
	divided []division
	claim   store.Claim
	// places has one entry for each claimed occurrence.
	places []claimedPlace
}

// claimedPlace is the quota under which an occurrence was claimed, and when it was due, in Unix milliseconds, if that
// was asked for.
type claimedPlace struct{ quota, due int }

// claimRun is one run of claim.lua, for one shard's parts of some quotas.
type claimRun struct {
	shard  int
	quotas []int
	parts  []part
	n      int // number of occurrences to claim in all
	args   []any
}

// runs returns the runs that claim all parts, in the order of the quotas. None claims more than chunk occurrences.
func (c *claiming) runs() (runs []*claimRun) {
	merged := slices.ContainsFunc(c.divided, func(d division) bool { return len(d.parts) > 1 })
	open := make(map[int]*claimRun)
	for i, d := range c.divided {
		w := c.wants[i]
		for _, part := range d.parts {
			r := open[part.shard]
			if r == nil || r.n+part.n > chunk {
				ends := c.params.Now.Add(c.params.Lease)
				r = &claimRun{shard: part.shard, args: []any{
					c.params.Now.UnixMilli(), ends.UnixMilli(), c.token, w.next, chunk, flag(merged),
				}}
				open[part.shard], runs = r, append(runs, r)
			}
			r.quotas, r.parts, r.n = append(r.quotas, i), append(r.parts, part), r.n+part.n
			r.args = append(r.args, w.lane, w.after, part.bound, part.n, w.bound)
		}
	}
	return runs
}

// read reads the answer of claim.lua.
func (c *claiming) read(r *claimRun, answer list) {
	taken, dues, lefts := readTaken(answer), answer.list(2), answer.list(6)
	for k := range taken {
		taken[k].Token, taken[k].ScheduledAt, taken[k].DueAt = c.token, c.params.Now, c.params.Now.Add(c.params.Lease)
	}
	c.claim.Occurrences = append(c.claim.Occurrences, taken...)
	first := 0
	for k, quota := range r.quotas {
		of, left := lefts.list(k), &c.claim.Quotas[quota]
		claimed, aside := of.number(0), of.number(1)
		left.Found += claimed
		left.More = left.More || aside > 0 || r.parts[k].counted && claimed < r.parts[k].n
		if of.text(2) != "" {
			left.Next = earliest(left.Next, of.score(2))
		}
		for i := range claimed {
			c.places = append(c.places, claimedPlace{quota, dues.number(first + i)})
		}
		first += claimed
	}
}

// sort brings the occurrences of several runs in the order of the quotas, and within one quota in the order of the due
// times.
func (c *claiming) sort() {
	order := make([]int, len(c.places))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(c.places[a].quota, c.places[b].quota), cmp.Compare(c.places[a].due, c.places[b].due))
	})
	sorted := make([]store.Claimed, len(order))
	for i, from := range order {
		sorted[i] = c.claim.Occurrences[from]
	}
	c.claim.Occurrences = sorted
}

// readTaken reads the claimed occurrences in the answer of claim.lua.
func readTaken(answer list) []store.Claimed {
	ids, lines, before := answer.list(0), answer.list(1), answer.list(3)
	targets := readTargets(ids, lines, answer.list(5))
	taken := make([]store.Claimed, len(ids))
	for i := range taken {
		c := &taken[i]
		c.Occurrence, c.Fault = decodeOccurrence(ids.text(i), lines.text(i))
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

// target is the callback and options of occurrences, or the reason why these can't be read.
type target struct {
	job.Target
	fault error
}

// readTargets returns each claimed occurrence's target. The targets in answer are in the order in which the occurrences
// first refer to them. Each is decoded once, however many occurrences share it.
func readTargets(ids, lines, answer list) []*target {
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
		owner, name := ids.text(i), lineOwner(lines.text(i))
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

// putBack puts back or drops the occurrences that a claim has set aside. If it fails, they are due again when the claim
// would end.
func (s *Store) putBack(ctx context.Context, p store.ClaimParams, shard int, aside list) {
	if len(aside) == 0 {
		return
	}
	args := []any{p.Now.Add(p.Lease).UnixMilli()}
	for i := range aside {
		id, why, lane := aside.list(i).text(0), aside.list(i).text(2), aside.list(i).text(4)
		o, err := decodeOccurrence(id, aside.list(i).text(1))
		var dueAt time.Time
		var drop bool
		switch why {
		case "paused":
			dueAt = store.PutBackPaused(o.Timestamp, aside.list(i).millis(3), p)
		case "unexpanded":
			dueAt = store.PutBackUnexpanded(p)
		default:
			if dueAt, drop = store.PutBack(o.Revision, p); err != nil {
				dueAt = p.Due().Add(time.Hour) // its line is damaged; it is kept for an operator to examine
			}
		}
		if drop {
			args = append(args, lane, id, "", 0)
		} else {
			args = append(args, lane, id, dueAt.UnixMilli(), flag(why == "paused"))
		}
	}
	_ = s.run(ctx, []call{{putBackScript, shard, args}})
}
