package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Cancel implements [store.Jobs]. Jobs are cancelled independently of each other, each by one script unless it has very
// many occurrences: the script that deletes the job counts them all, and further scripts delete them in parts.
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	results := make([]store.CancelResult, len(names))
	going := make([]int, len(names))
	for i := range names {
		going[i] = i
	}
	for first := true; len(going) > 0; first = false {
		calls := make([]call, len(going))
		for k, i := range going {
			args := []any{jobField(names[i]), asked.Now.UnixMilli(), chunk, span(asked.Newer), condition(asked.If)}
			calls[k] = call{cancelScript, s.shardOf(names[i]), args}
		}
		replies := s.run(ctx, calls)
		if err := firstError(replies); err != nil {
			if !first {
				err = partly(err)
			}
			return nil, err
		}
		var again []int
		for k, reply := range replies {
			answer, _ := reply.list()
			i := going[k]
			r := &results[i]
			switch answer.text(0) {
			case "superseded":
				if !r.Found { // else an earlier call deleted standalone occurrences, and the newer job came after that
					r.Err = store.ErrSuperseded
				}
			case "precondition":
				if r.Found { // an earlier call deleted standalone occurrences
					return nil, errChangedMeanwhile
				}
				r.Err = store.ErrPrecondition
			case "found":
				r.Found = true
			}
			r.Cancelled += answer.number(1)
			r.InFlight += answer.number(2)
			if answer.number(3) > 0 {
				again = append(again, i)
			}
			if revision := answer.text(4); revision != "" {
				s.dropAll(ctx, calls[k].shard, job.Revision(revision), "", asked.Now)
			}
		}
		going = again
	}
	return results, nil
}

// errChangedMeanwhile is the error of a cancellation on a condition that has deleted many standalone occurrences of a
// job, which was then changed.
var errChangedMeanwhile = fmt.Errorf("%w: the job was changed while it was cancelled", store.ErrUnavailable)

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	answer, err := s.run(ctx, []call{{amendScript, s.shardOf(a.Name), []any{
		jobField(a.Name), string(a.Of), string(a.Version), a.Now.UnixMilli(),
		a.Callback.Type, encodeTarget(a.Callback, a.Options),
	}}})[0].text()
	switch {
	case err != nil:
		return err
	case answer == "missing":
		return store.ErrNotFound
	case answer == "precondition":
		return store.ErrPrecondition
	}
	return nil
}

// Pause implements [store.Jobs]. It writes the job only, however many occurrences the job has: claims put those back.
func (s *Store) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return s.ifThere(ctx, call{pauseScript, s.shardOf(name), []any{jobField(name), string(version), now.UnixMilli()}})
}

// ifThere runs a script that reports whether the job exists.
func (s *Store) ifThere(ctx context.Context, c call) error {
	there, err := s.run(ctx, []call{c})[0].number()
	if err == nil && there == 0 {
		return store.ErrNotFound
	}
	return err
}

// Resume implements [store.Jobs]. It examines all of the job's occurrences: an early claim, or one by a clock that is
// ahead, may have put back an occurrence whose instant is still ahead. They sort by their instants, so those that have
// passed come first.
func (s *Store) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	ctx, cancel := bound(ctx)
	defer cancel()
	var revision, last string
	for {
		answer, err := s.run(ctx, []call{{resumeScript, s.shardOf(name), []any{
			jobField(name), string(version), now.UnixMilli(), chunk, revision, last,
		}}})[0].list()
		if err != nil && last != "" {
			return partly(err)
		}
		if err != nil {
			return err
		}
		if answer.number(0) == 0 {
			return store.ErrNotFound
		}
		if revision, last = answer.text(1), answer.text(2); last == "" {
			return nil
		}
	}
}

// Trigger implements [store.Jobs].
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	return s.ifThere(ctx, call{triggerScript, s.shardOf(o.Name), []any{
		jobField(o.Name), o.ID.String(), encodeOccurrence(&o), o.DueAt.UnixMilli(),
		encodeTarget(o.Own.Callback, o.Own.Options),
	}})
}
