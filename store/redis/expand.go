package redis

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// ClaimJobs implements [store.Queue]. It asks all shards at once for one entry each before it claims anything.
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	due := strconv.FormatInt(p.Now.UnixMilli(), 10)
	divided, err := s.divide(ctx, []want{{set: set{key: keyExpansion}, after: "-inf", bound: due, limit: p.Limit}})
	parts := divided[0].parts
	if len(parts) == 0 {
		return store.ClaimedJobs{}, err
	}
	claimed := store.ClaimedJobs{Token: job.NewToken(), More: divided[0].more}
	calls := make([]call, len(parts))
	for i, part := range parts {
		args := []any{part.bound, part.n, p.Now.Add(p.Lease).UnixMilli(), claimed.Token}
		calls[i] = call{claimJobsScript, part.shard, args}
	}
	type expandable struct {
		job.Job
		due int
	}
	var all []expandable
	found := 0
	for i, r := range s.run(ctx, calls) {
		answer, failure := r.list()
		if failure != nil {
			err = failure
			continue
		}
		for k := range answer {
			j, readable := readExpandable(answer.list(k))
			if !readable { // it stays claimed, so that it does not hold up claims of the others
				claimed.Unreadable = append(claimed.Unreadable, parseJobField(answer.list(k).text(0)))
				continue
			}
			all = append(all, expandable{j, answer.list(k).number(1)})
		}
		found += len(answer)
		claimed.More = claimed.More || parts[i].counted && len(answer) < parts[i].n
	}
	if found == 0 && err != nil {
		return store.ClaimedJobs{}, err
	}
	slices.SortStableFunc(all, func(a, b expandable) int {
		return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(a.Key, b.Key))
	})
	for i := range all {
		claimed.Jobs = append(claimed.Jobs, all[i].Job)
	}
	claimed.More = claimed.More || found >= min(p.Limit, chunk)
	return claimed, nil
}

func readExpandable(row list) (j job.Job, readable bool) {
	status, err := decodeState(row.text(0), row.text(2), "")
	if err != nil {
		return j, false
	}
	j = status.Job
	if j.Options, err = job.DecodeOptions([]byte(row.text(3))); err != nil {
		return j, false
	}
	j.Schedule, err = job.DecodeSchedule([]byte(row.text(4)))
	return j, err == nil
}

// Advance implements [store.Queue]. One script advances a job. If the job gets more than chunk occurrences, other
// scripts insert the rest of them before, beyond the cursor, each only if the job's claim still stands.
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	var last []call
	for i := range advances {
		a := &advances[i]
		shard, rest := s.shardOf(a.Name), a.Occurrences
		for ; len(rest) > chunk; rest = rest[chunk:] {
			args := append(advanceArgs(a), "", 0, 0, "", 0, 0, "")
			still, err := s.run(ctx, []call{{advanceScript, shard, appendOccurrences(args, rest[:chunk])}})[0].number()
			if err != nil {
				return err
			}
			if still == 0 {
				break
			}
		}
		if len(rest) > chunk {
			continue // another replica has the job
		}
		expiresAt := ""
		if !a.ExpiresAt.IsZero() {
			expiresAt = strconv.FormatInt(a.ExpiresAt.UnixMilli(), 10)
		}
		cursor := a.Cursor
		if a.ExpandAt.IsZero() { // the schedule has ended
			cursor = time.Time{}
		}
		args := append(advanceArgs(a), "last", millis(cursor), millis(a.ExpandAt), expiresAt,
			a.Missed, a.Planned(), a.Trouble.Encode())
		last = append(last, call{advanceScript, shard, appendOccurrences(args, rest)})
	}
	return firstError(s.run(ctx, last))
}

// advanceArgs returns the first arguments of advance.lua: the job's name, and its state when it was claimed.
func advanceArgs(a *store.Advance) []any {
	return []any{jobField(a.Name), string(a.Revision), millis(a.From), a.Token}
}
