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

// Put implements [store.Jobs]. Jobs are put independently of each other, except those of one name.
//
// One script, the flip, puts a job with up to chunk occurrences and up to chunk carried-over ones; it may put other
// jobs too. Of a larger job, the other occurrences are inserted beforehand, and are orphans until the flip, or marked
// beforehand, see prelude.lua. If the flip does not run, they stay orphans, and the marks have no effect.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := bound(ctx)
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
	schedule []byte           // encoded
	rest     []job.Occurrence // the occurrences that the flip inserts
	carry    []store.Carried  // the occurrences that the flip carries over
	alone    bool             // the flip needs a script of its own
	more     bool             // the replaced revision has more occurrences to delete
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
		if p.Err = s.prepareFlip(ctx, p); p.Err == nil {
			going = append(going, p)
		}
	}
	s.flip(ctx, going)
	var alone []*put
	for _, p := range going {
		if p.alone && p.Err == nil {
			alone = append(alone, p)
		}
	}
	s.flip(ctx, alone)
	for _, p := range round {
		unchanged := errors.Is(p.Err, store.ErrPrecondition) || errors.Is(p.Err, store.ErrSuperseded) ||
			errors.Is(p.Err, store.ErrNotDone)
		switch {
		case unchanged && (len(p.rest) < len(p.Occurrences) || len(p.carry) < len(p.Put.Carried)):
			tidying, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the put's time may be over
			s.dropAll(tidying, p.shard, p.Job.Revision, jobField(p.Job.Name), p.Now)
			cancel()
		case p.more:
			s.dropAll(ctx, p.shard, p.Replaced, "", p.Now)
		}
	}
}

// prepareFlip inserts the occurrences of a put and marks the carried-over ones that are too many for the flip. If it
// fails, there is no flip, so nothing takes effect.
func (s *Store) prepareFlip(ctx context.Context, p *put) error {
	p.rest, p.carry = p.Occurrences, p.Put.Carried
	for len(p.rest) > chunk {
		var calls []call
		for len(p.rest) > chunk && len(calls) < 16 { // bounds this process' memory
			args := appendOccurrences([]any{string(p.Job.Revision)}, p.rest[:chunk])
			calls, p.rest = append(calls, call{insertScript, p.shard, args}), p.rest[chunk:]
		}
		if err := firstError(s.run(ctx, calls)); err != nil {
			return undone(err)
		}
	}
	for which := "first"; len(p.carry) > chunk; which = "" {
		args := appendCarried([]any{jobField(p.Job.Name), string(p.Job.Revision), which}, p.carry[:chunk])
		p.carry = p.carry[chunk:]
		marked, err := s.run(ctx, []call{{markScript, p.shard, args}})[0].number()
		if err != nil {
			return undone(err)
		}
		if marked == 0 {
			return store.ErrPrecondition
		}
	}
	return nil
}

// appendCarried appends the ids of carried-over occurrences to arguments, each with the text of its mark.
func appendCarried(args []any, carried []store.Carried) []any {
	for i := range carried {
		args = append(args, carried[i].ID.String(), encodeHeir(&carried[i].As))
	}
	return args
}

// appendOccurrences adds occurrences to arguments in the form of the script function insert.
func appendOccurrences(args []any, occurrences []job.Occurrence) []any {
	for i := range occurrences {
		o := &occurrences[i]
		args = append(args, o.ID.String(), encodeOccurrence(o), o.Lane().String(), o.DueAt.UnixMilli())
	}
	return args
}

// flip makes the revisions of puts their jobs', several by one script.
func (s *Store) flip(ctx context.Context, puts []*put) {
	for groups := range slices.Chunk(s.groups(puts), pipelined) {
		calls := make([]call, len(groups))
		for i, g := range groups {
			calls[i] = call{putScript, g[0].shard, putArgs(g)}
		}
		for i, r := range s.run(ctx, calls) {
			readFlip(groups[i], r)
		}
	}
}

// putTogether bounds the jobs that one script puts, so that it does not block other clients for long.
const putTogether = 100

// groups divides puts into groups that one script each may put: jobs of one shard, with a bounded number of occurrences
// and of bytes. A job that reaches a bound alone, or that replaces too many occurrences, has a group of its own.
func (s *Store) groups(puts []*put) (groups [][]*put) {
	type open struct{ group, occurrences, size int }
	shards := make([]open, len(s.shards))
	for i := range shards {
		shards[i].group = -1
	}
	for _, p := range puts {
		o, n, size := &shards[p.shard], len(p.rest)+len(p.carry), len(p.Job.Callback.Data)+len(p.schedule)
		if o.group < 0 || p.alone || len(groups[o.group]) == putTogether ||
			o.occurrences+n > chunk || o.size+size > largestPage {
			groups = append(groups, nil)
			*o = open{group: len(groups) - 1}
		}
		groups[o.group] = append(groups[o.group], p)
		o.occurrences, o.size = o.occurrences+n, o.size+size
	}
	return groups
}

// putArgs returns the arguments of put.lua for puts of one shard.
func putArgs(puts []*put) []any {
	n := 1
	for _, p := range puts {
		n += 17 + 4*len(p.rest) + 2*len(p.carry)
	}
	args := append(make([]any, 0, n), chunk)
	for _, p := range puts {
		j := &p.Job
		var carried any = len(p.carry)
		if len(p.carry) < len(p.Put.Carried) {
			carried = fmt.Sprintf("%d %d %d", len(p.carry), len(p.Occurrences)-len(p.rest), len(p.Put.Carried))
		}
		args = append(args, jobField(j.Name), putCondition(p.Put), span(p.Newer),
			string(j.Revision), millis(j.CreatedAt), millis(j.UpdatedAt), millis(j.ExpiresAt),
			millis(j.Cursor), millis(j.ExpandAt), encodeCounts(j),
			j.Callback.Type, encodeTarget(j.Callback, j.Options), p.schedule,
			flag(p.StartsOver), p.Now.UnixMilli(), len(p.rest), carried)
		args = appendCarried(appendOccurrences(args, p.rest), p.carry)
	}
	return args
}

// span encodes a span of versions for the scripts.
func span(s store.Span) string {
	if s == (store.Span{}) {
		return ""
	}
	return string(s.After) + " " + string(s.Until)
}

// flag encodes a boolean for the scripts.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// putCondition encodes the condition of a put for the scripts.
func putCondition(p *store.Put) string {
	if p.From != (store.Replaced{}) {
		return fmt.Sprintf("from %s %d", p.From.Version, millis(p.From.Cursor))
	}
	return condition(p.If)
}

// condition encodes a condition for the scripts.
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
func readFlip(puts []*put, r reply) {
	answer, err := r.list()
	for _, p := range puts {
		p.Err, p.alone = err, false
	}
	for i := range answer {
		of := answer.list(i)
		place := of.number(0) - 1
		if place < 0 || place >= len(puts) {
			continue
		}
		p := puts[place]
		switch of.text(1) {
		case "precondition":
			p.Err = store.ErrPrecondition
		case "superseded":
			p.Err = store.ErrSuperseded
		case "alone":
			p.alone = true
		default:
			p.Replaced, p.InFlight, p.more = job.Revision(of.text(2)), of.number(3), of.number(4) > 0
			p.Paused, p.PutResult.Carried = of.number(5) > 0, of.number(6)
		}
	}
}

// dropAll deletes the occurrences of a revision that no job has. The name is that of the job that was to have the
// revision, or empty if a job had it. Occurrences that it fails to delete stay as orphans; those carried over stay.
func (s *Store) dropAll(ctx context.Context, shard int, revision job.Revision, name string, now time.Time) {
	for more := 1; more > 0; {
		more, _ = s.run(ctx, []call{{dropScript, shard, []any{string(revision), now.UnixMilli(), chunk, name}}})[0].number()
	}
}
