// Package memory is the reference store: the contract of package store in the plainest code. It keeps everything in
// maps under one mutex, and nothing outlives the process. Each method looks at as much as there is, so a claim takes
// longer the more there is: it is meant for tests, of this project and of its users.
//
// Every call is one step under the mutex, so a job and its occurrences always change together, and no occurrence is
// ever without its job or beyond its job's cursor.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// URL is what the store is opened by.
const URL = "memory:"

// Store implements [store.Store].
type Store struct {
	mutex sync.Mutex
	jobs  map[job.Name]*entry
	// pending has only names that have pending occurrences. One with a revision has that of its name's job.
	pending map[job.Name]map[job.ID]*job.Occurrence
	dead    map[job.ID]*job.Occurrence
	records map[recordKey]store.Record
}

// entry is a job, and the token of the claim to expand it; empty if there is none.
type entry struct {
	job.Job
	token string
}

// New makes an empty store. Replicas share it by using the same Store.
func New() *Store {
	return &Store{
		jobs:    map[job.Name]*entry{},
		pending: map[job.Name]map[job.ID]*job.Occurrence{},
		dead:    map[job.ID]*job.Occurrence{},
		records: map[recordKey]store.Record{},
	}
}

// Open makes an empty store for [URL], the only one that it takes.
func Open(_ context.Context, rawURL string) (*Store, error) {
	if rawURL != URL {
		return nil, fmt.Errorf("store URL %q: must be %q; a store in memory has no name, since nothing can share it",
			rawURL, URL)
	}
	return New(), nil
}

// Close implements [store.Store]. The documents stay, so that one who still uses the store finds them.
func (s *Store) Close() error { return nil }

// Warnings tells in what the store differs from one to rely on.
func (s *Store) Warnings(context.Context) []string {
	return []string{
		"jobs are kept in this process's memory: they are gone when it ends, and no other replica can share them",
	}
}

// Now answers this machine's time: whoever shares the store runs here.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	if err := s.begin(ctx); err != nil {
		return time.Time{}, err
	}
	defer s.mutex.Unlock()
	return time.Now(), nil
}

// begin takes the mutex, or answers why the call may not take effect any more. Nothing that follows waits, so whoever
// begins in time ends in time.
func (s *Store) begin(ctx context.Context) error {
	s.mutex.Lock()
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) { // its timer may come late
		err = context.DeadlineExceeded
	}
	if err != nil {
		s.mutex.Unlock()
		return fmt.Errorf("%w: %w", store.ErrNotDone, err)
	}
	return nil
}

// insert adds a pending occurrence, unless it is there already, pending or dead. It answers whether it did.
func (s *Store) insert(o job.Occurrence) bool {
	if s.pending[o.Name][o.ID] != nil || s.dead[o.ID] != nil {
		return false
	}
	if s.pending[o.Name] == nil {
		s.pending[o.Name] = map[job.ID]*job.Occurrence{}
	}
	s.pending[o.Name][o.ID] = &o
	return true
}

// remove deletes a pending occurrence.
func (s *Store) remove(o *job.Occurrence) {
	delete(s.pending[o.Name], o.ID)
	if len(s.pending[o.Name]) == 0 {
		delete(s.pending, o.Name)
	}
}

// removeAll deletes the pending occurrences of a name that have a revision, and answers how many there were and how
// many of them were held at now.
func (s *Store) removeAll(n job.Name, revision job.Revision, now time.Time) (total, held int) {
	for _, o := range s.pending[n] {
		if o.Revision != revision {
			continue
		}
		total++
		if o.Held(now) {
			held++
		}
		s.remove(o)
	}
	return total, held
}

// inLane are the pending occurrences of a lane, the longest due first.
func (s *Store) inLane(l job.Lane) (all []*job.Occurrence) {
	for n, pending := range s.pending {
		if n.Tenant != l.Tenant {
			continue
		}
		for _, o := range pending {
			if o.Priority == l.Priority {
				all = append(all, o)
			}
		}
	}
	slices.SortFunc(all, func(a, b *job.Occurrence) int {
		if c := a.DueAt.Compare(b.DueAt); c != 0 {
			return c
		}
		return a.ID.Compare(b.ID)
	})
	return all
}

// status is a job with the first of its pending occurrences.
func (s *Store) status(j job.Job) store.JobStatus {
	var first job.ID
	for id, o := range s.pending[j.Name] {
		if o.Revision == j.Revision && (first == (job.ID{}) || id.Compare(first) < 0) {
			first = id
		}
	}
	return store.JobStatus{Job: j, Next: job.InstantOf(first)}
}

// byID are occurrences in the order of their ids.
func byID(occurrences map[job.ID]*job.Occurrence) []*job.Occurrence {
	return slices.SortedFunc(maps.Values(occurrences), func(a, b *job.Occurrence) int { return a.ID.Compare(b.ID) })
}

// compareNames orders names by their bytes.
func compareNames(a, b job.Name) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key, b.Key))
}

// page is the first of a list, up to a limit.
func page[T any](all []T, limit int) []T { return all[:min(len(all), limit)] }

// kept is a job as stores keep it: what they would lose is lost here too, and what the caller changes later does not
// change it.
func kept(j job.Job) (job.Job, error) {
	for _, t := range []*time.Time{&j.CreatedAt, &j.UpdatedAt, &j.ExpiresAt, &j.PausedAt, &j.Cursor, &j.ExpandAt} {
		*t = millis(*t)
	}
	j.Callback.Data = slices.Clone(j.Callback.Data)
	var err error
	if j.Options, err = keptOptions(j.Options); err != nil {
		return j, err
	}
	if j.Schedule, err = job.DecodeSchedule(j.Schedule.Encode()); err != nil {
		return j, err
	}
	j.Trouble, err = job.DecodeTrouble(j.Trouble.Encode())
	return j, err
}

// keptOptions are options as stores keep them.
func keptOptions(o job.Options) (job.Options, error) { return job.DecodeOptions(o.Encode()) }

// keptTarget is a target as stores keep it.
func keptTarget(t job.Target) (*job.Target, error) {
	t.Callback.Data = slices.Clone(t.Callback.Data)
	var err error
	t.Options, err = keptOptions(t.Options)
	return &t, err
}

// fresh is an occurrence of which only what it is at first is kept.
func fresh(o job.Occurrence) job.Occurrence {
	return job.Occurrence{
		ID: o.ID, Name: o.Name, Priority: o.Priority, Revision: o.Revision, Position: o.Position, Part: o.Part,
		Timestamp: millis(o.Timestamp), DueAt: millis(o.DueAt),
	}
}

// millis is a time as stores keep it: whole milliseconds in UTC.
func millis(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(t.UnixMilli()).UTC()
}
