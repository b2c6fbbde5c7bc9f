package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs]. Jobs are put independently of each other, but for those of one name.
//
// A job with up to chunk occurrences is put by one script, which may put others too. Of one with more, the others are inserted
// before, and are orphans until that script has run. Should it not run, they stay orphans.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := context.WithTimeout(ctx, store.Within) // for callers that set no limit
	defer cancel()
	results := make([]store.PutResult, len(puts))
	for _, round := range rounds(puts, results) {
		s.putRound(ctx, round)
	}
	return results
}

// put is one job on its way into the store.
type put struct {
	*store.Put
	*store.PutResult
	shard    int
	schedule []byte           // as it is stored
	rest     []job.Occurrence // those that the flip inserts
	late     bool             // the server's clock refused the flip
	more     bool             // more of what was replaced is to be deleted
}

// rounds splits puts so that no round has a name twice and those of one name are in order.
func rounds(puts []store.Put, results []store.PutResult) (all [][]*put) {
	next := make(map[job.Name]int, len(puts))
	for i := range puts {
		n := next[puts[i].Job.Name]
		next[puts[i].Job.Name]++
		if n == len(all) {
			all = append(all, nil)
		}
		all[n] = append(all[n], &put{Put: &puts[i], PutResult: &results[i]})
	}
	return all
}

// putRound puts jobs of distinct names.
func (s *Store) putRound(ctx context.Context, round []*put) {
	var going []*put
	for _, p := range round {
		p.shard, p.schedule = s.shardOf(p.Job.Name), p.Job.Schedule.Encode()
		if p.Err = s.insertBefore(ctx, p); p.Err != nil {
			s.tidy(ctx, p) // no flip was tried, so nothing will ever want them
			continue
		}
		going = append(going, p)
	}
	for attempt := 1; len(going) > 0; attempt++ {
		s.flip(ctx, going)
		var late []*put
		for _, p := range going {
			switch {
			case p.late && ctx.Err() == nil && attempt < 3: // by a clock that was known wrongly
				late = append(late, p)
			case p.late:
				p.Err = fmt.Errorf("%w: the time for the put is over", store.ErrUnavailable)
			}
		}
		going = late
	}
	for _, p := range round {
		if errors.Is(p.Err, store.ErrPrecondition) && len(p.rest) < len(p.Occurrences) {
			s.tidy(ctx, p)
		}
		if p.more { // the put is done; but what was held can't be told if this fails
			_, held, err := s.dropAll(ctx, p.shard, p.Replaced, p.Now)
			p.InFlight, p.Err = p.InFlight+held, err
		}
	}
}

// insertBefore inserts the occurrences of a put for which the flip has no room.
func (s *Store) insertBefore(ctx context.Context, p *put) error {
	p.rest = p.Occurrences
	for len(p.rest) > chunk {
		var calls []call
		for len(p.rest) > chunk && len(calls) < 16 { // so many at once take little memory here
			args := appendOccurrences([]any{string(p.Job.Revision)}, p.rest[:chunk])
			calls, p.rest = append(calls, call{insertScript, p.shard, args}), p.rest[chunk:]
		}
		if err := firstError(s.run(ctx, calls)); err != nil {
			return err
		}
	}
	return nil
}

// appendOccurrences adds occurrences to arguments as the script function insert takes them.
func appendOccurrences(args []any, occurrences []job.Occurrence) []any {
	for i := range occurrences {
		o := &occurrences[i]
		args = append(args, o.ID.String(), encodeOccurrence(o), o.Lane().String(), o.DueAt.UnixMilli())
	}
	return args
}

// flip makes the revisions of puts their jobs', several by one script.
//
// A command that was sent may be carried out long after the caller has given up, so the script refuses what is late, by the
// server's clock, which is compared with this machine's whenever it answers. The difference that is noted is a little less
// than the true one, by the time that the answer took, so the limit is never too late. One that is far too early, since an
// answer took long, is mended by the refusal.
func (s *Store) flip(ctx context.Context, puts []*put) {
	deadline, _ := ctx.Deadline() // Put has set one
	for groups := range slices.Chunk(s.groups(puts), pipelined) {
		calls := make([]call, len(groups))
		for i, g := range groups {
			calls[i] = call{putScript, g[0].shard, putArgs(g, deadline.UnixMilli()+s.shards[g[0].shard].ahead.Load())}
		}
		for i, r := range s.run(ctx, calls) {
			s.readFlip(groups[i], r)
		}
	}
}

// putTogether bounds the jobs that one script puts, lest it keeps others waiting for long.
const putTogether = 100

// groups divides puts by what one script may put: jobs of one shard, with a bounded number of occurrences and of bytes. A job
// that has as many as that alone is in no company.
func (s *Store) groups(puts []*put) (groups [][]*put) {
	type open struct{ group, occurrences, size int }
	shards := make([]open, len(s.shards))
	for i := range shards {
		shards[i].group = -1
	}
	for _, p := range puts {
		o, n, size := &shards[p.shard], len(p.rest), len(p.Job.Callback.Data)+len(p.schedule)
		if o.group < 0 || len(groups[o.group]) == putTogether || o.occurrences+n > chunk || o.size+size > largestPage {
			groups = append(groups, nil)
			*o = open{group: len(groups) - 1}
		}
		groups[o.group] = append(groups[o.group], p)
		o.occurrences, o.size = o.occurrences+n, o.size+size
	}
	return groups
}

// putArgs are what put.lua takes, of puts of one shard.
func putArgs(puts []*put, before int64) []any {
	n := 2
	for _, p := range puts {
		n += 15 + 4*len(p.rest)
	}
	args := append(make([]any, 0, n), before, chunk)
	for _, p := range puts {
		j := &p.Job
		args = append(args, jobField(j.Name), condition(p.If),
			string(j.Revision), millis(j.CreatedAt), millis(j.UpdatedAt), millis(j.ExpiresAt), millis(j.Cursor), millis(j.ExpandAt), j.Missed,
			j.Callback.Type, encodeTarget(j.Callback, j.Options), p.schedule, flag(p.Anew), p.Now.UnixMilli(), len(p.rest))
		args = appendOccurrences(args, p.rest)
	}
	return args
}

// flag writes what is so or not as the scripts take it.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// condition writes a condition as put.lua takes it.
func condition(c store.Condition) string {
	switch {
	case c.Absent:
		return "absent"
	case c.Present:
		return "present"
	case len(c.Versions) > 0:
		text := strings.Builder{}
		text.WriteString("versions")
		for _, v := range c.Versions {
			text.WriteString(" " + string(v))
		}
		return text.String()
	default:
		return ""
	}
}

// readFlip reads the answer of put.lua.
func (s *Store) readFlip(puts []*put, r reply) {
	answer, err := r.list()
	late := err == nil && answer.text(0) == "late"
	for _, p := range puts {
		p.Err, p.late = err, late
	}
	if err != nil {
		return
	}
	s.noteClock(puts[0].shard, int64(answer.number(1)))
	others := answer.list(2)
	for i := range others {
		of := others.list(i)
		place := of.number(0) - 1
		if place < 0 || place >= len(puts) {
			continue
		}
		p := puts[place]
		if of.text(1) == "precondition" {
			p.Err = store.ErrPrecondition
			continue
		}
		p.Replaced, p.InFlight, p.more = job.Revision(of.text(2)), of.number(3), of.number(4) > 0
		p.Paused = of.number(5) > 0
	}
}

// noteClock notes what a shard's server's clock showed a moment ago.
func (s *Store) noteClock(shard int, ms int64) {
	s.shards[shard].ahead.Store(ms - time.Now().UnixMilli())
}

// tidy deletes the occurrences that were inserted for a put which has failed for certain. What can't be deleted stays as
// orphans.
func (s *Store) tidy(ctx context.Context, p *put) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the put's time may be over
	defer cancel()
	_, _, _ = s.dropAll(ctx, p.shard, p.Job.Revision, p.Now)
}

// dropAll deletes the occurrences of a revision that is no job's, and counts those that were not held and those that were.
func (s *Store) dropAll(ctx context.Context, shard int, revision job.Revision, now time.Time) (dropped, held int, err error) {
	for more := true; more; {
		answer, err := s.run(ctx, []call{{dropScript, shard, []any{string(revision), now.UnixMilli(), chunk}}})[0].list()
		if err != nil {
			return dropped, held, err
		}
		dropped, held, more = dropped+answer.number(0), held+answer.number(1), answer.number(2) > 0
	}
	return dropped, held, nil
}
