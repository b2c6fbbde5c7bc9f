package redis

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	page, err := merge(ctx, s, f.Limit, pages[store.JobStatus]{
		shards: s.shardsOf(f),
		call: func(after string, limit int) (*script, []any) {
			from, to := keyRange(f, cmp.Or(after, f.After))
			return jobsScript, []any{from, to, limit, flag(f.Whole)}
		},
		read: func(answer list, limit int) (page []store.JobStatus, next string, err error) {
			for i := range answer {
				status, err := readListed(answer.list(i), f.Whole)
				if err != nil {
					return nil, "", err
				}
				page = append(page, status)
			}
			if len(page) == limit {
				next = page[limit-1].Key
			}
			return page, next, nil
		},
		compare: func(a, b store.JobStatus) int { return strings.Compare(a.Key, b.Key) },
	})
	if err != nil || !f.Standalone {
		return page, err
	}
	names, err := s.standalone(ctx, f)
	return store.WithStandalone(page, names, f.Limit), err
}

// shardsOf returns the shards that may have documents which a filter selects; nil for all.
func (s *Store) shardsOf(f store.JobFilter) []int {
	if f.Key == "" {
		return nil
	}
	return []int{s.shardOf(job.Name{Tenant: f.Tenant, Key: f.Key})}
}

// readListed decodes a job in the answer of the script jobs.
func readListed(row list, whole bool) (store.JobStatus, error) {
	status, err := decodeState(row.text(0), row.text(1), row.text(2))
	if err != nil || !whole {
		return status, err
	}
	target, err := decodeTarget(row.text(3))
	if err != nil {
		return status, err
	}
	status.Callback, status.Options = target.Callback, target.Options
	status.Schedule, err = job.DecodeSchedule([]byte(row.text(4)))
	return status, err
}

// standalone lists the names that have pending standalone occurrences.
func (s *Store) standalone(ctx context.Context, f store.JobFilter) ([]job.Name, error) {
	return merge(ctx, s, f.Limit, pages[job.Name]{
		shards: s.shardsOf(f),
		call: func(after string, limit int) (*script, []any) {
			from, to := keyRange(f, cmp.Or(after, f.After))
			return standaloneScript, []any{from, to, limit}
		},
		read: func(answer list, limit int) (page []job.Name, next string, err error) {
			for i := range answer {
				page = append(page, parseJobField(answer.text(i)))
			}
			if len(page) == limit {
				next = page[limit-1].Key
			}
			return page, next, nil
		},
		compare: func(a, b job.Name) int { return strings.Compare(a.Key, b.Key) },
	})
}

// Occurrences implements [store.Jobs]. A revision's occurrences and the standalone ones are in different indexes, so it
// reads a page of each and merges the two.
func (s *Store) Occurrences(
	ctx context.Context, f store.OccurrenceFilter,
) (page []job.Occurrence, total int, err error) {
	answer, err := s.run(ctx, []call{{occurrencesScript, s.shardOf(f.Name), []any{
		jobField(f.Name), string(f.Revision), f.After.String(), f.Limit, flag(f.Count),
	}}})[0].list()
	if err != nil {
		return nil, 0, err
	}
	for i := 1; i < len(answer); i++ {
		row := answer.list(i)
		o, err := decodeOccurrence(row.text(0), row.text(1))
		if err != nil {
			return nil, 0, err
		}
		setAttempts(&o, row.text(2))
		o.LastError, o.DueAt = row.text(3), row.score(4)
		page = append(page, o)
	}
	slices.SortFunc(page, func(a, b job.Occurrence) int { return a.ID.Compare(b.ID) })
	return page[:min(len(page), f.Limit)], answer.number(0), nil
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	index, whose, only := "tenant", f.Tenant, ""
	if f.Key != "" {
		index, whose = "job", jobField(job.Name{Tenant: f.Tenant, Key: f.Key})
	}
	if f.ID != (job.ID{}) {
		if f.ID.Compare(f.After) <= 0 { // compared here, since Lua compares texts by the server's locale
			return nil, nil
		}
		only = f.ID.String()
	}
	prefix := jobField(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	return merge(ctx, s, f.Limit, pages[job.Occurrence]{
		call: func(after string, limit int) (*script, []any) {
			after = cmp.Or(after, f.After.String())
			return deadLettersScript, []any{index, whose, after, limit, chunk, prefix, only, flag(f.Brief)}
		},
		read: func(answer list, _ int) (page []job.Occurrence, next string, err error) {
			for i := 1; i < len(answer); i++ {
				o, err := readDeadLetter(answer.list(i))
				if err != nil {
					return nil, "", err
				}
				page = append(page, o)
			}
			return page, answer.text(0), nil
		},
		compare: func(a, b job.Occurrence) int { return a.ID.Compare(b.ID) },
	})
}

func readDeadLetter(row list) (job.Occurrence, error) {
	o, err := decodeOccurrence(row.text(0), row.text(1))
	if err != nil {
		return o, err
	}
	setAttempts(&o, row.text(2))
	o.LastError, o.FailedAt = row.text(3), row.score(4)
	own, err := decodeTarget(row.text(5))
	o.Own = &own
	return o, err
}

// pages describes how to read a list from a shard, page by page.
type pages[T any] struct {
	// shards are the shards to read; nil for all.
	shards []int
	// call returns the script for the page that begins after a place, which is empty at first.
	call func(after string, limit int) (*script, []any)
	// read decodes the answer. Next is the place after which the next page begins; empty if there is none.
	read    func(answer list, limit int) (page []T, next string, err error)
	compare func(a, b T) int
}

// pageSize bounds a page of one shard, since merging the shards may discard most of it.
const pageSize = 200

// merge reads the same list from all shards and merges them into one, up to a limit.
func merge[T any](ctx context.Context, s *Store, limit int, p pages[T]) (merged []T, err error) {
	type stream struct {
		page  []T
		after string
		ended bool
	}
	shards := p.shards
	if shards == nil {
		shards = make([]int, len(s.shards))
		for i := range shards {
			shards[i] = i
		}
	}
	streams := make([]stream, len(shards))
	size := min(limit, pageSize)
	for len(merged) < limit {
		var calls []call
		var asked []*stream
		for i := range streams {
			if st := &streams[i]; len(st.page) == 0 && !st.ended {
				script, args := p.call(st.after, size)
				calls, asked = append(calls, call{script, shards[i], args}), append(asked, st)
			}
		}
		for i, r := range s.run(ctx, calls) {
			answer, err := r.list()
			if err != nil {
				return nil, err
			}
			st := asked[i]
			if st.page, st.after, err = p.read(answer, size); err != nil {
				return nil, err
			}
			st.ended = st.after == ""
		}
		// Take the least item, until a shard's next item is unknown.
		for len(merged) < limit {
			var least *stream
			unknown := false
			for i := range streams {
				switch st := &streams[i]; {
				case len(st.page) == 0:
					unknown = unknown || !st.ended
				case least == nil || p.compare(st.page[0], least.page[0]) < 0:
					least = st
				}
			}
			if unknown {
				break
			}
			if least == nil {
				return merged, nil
			}
			merged, least.page = append(merged, least.page[0]), least.page[1:]
		}
	}
	return merged, nil
}
