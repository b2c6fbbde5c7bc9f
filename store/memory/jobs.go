package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs].
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	err := s.begin(ctx)
	if err == nil {
		defer s.mutex.Unlock()
	}
	for i := range puts {
		if results[i].Err = err; err == nil {
			results[i] = s.put(&puts[i])
		}
	}
	return results
}

func (s *Store) put(p *store.Put) (result store.PutResult) {
	j, err := kept(p.Job)
	if err != nil {
		return store.PutResult{Err: err}
	}
	j.PausedAt = time.Time{}
	before := s.jobs[j.Name]
	if before == nil {
		err = p.Judge("", time.Time{})
	} else {
		err = p.Judge(before.Version, before.Cursor)
	}
	if err != nil {
		return store.PutResult{Err: err}
	}
	if before != nil {
		result = s.replace(p, before)
		j.Planned = p.Planned(result.Carried)
		if !p.StartsOver {
			j.CreatedAt, j.PausedAt = before.CreatedAt, before.PausedAt
		}
	}
	if result.Paused = !j.PausedAt.IsZero(); result.Paused {
		j.ExpandAt = time.Time{}
	}
	s.jobs[j.Name] = &entry{Job: j}
	for _, o := range p.Occurrences {
		s.insert(fresh(o))
	}
	return result
}

// replace gives the put those of the present job's occurrences that it carries over, and deletes the others. Those that
// are held are deleted too: their settlements will find nothing.
func (s *Store) replace(p *store.Put, before *entry) store.PutResult {
	result := store.PutResult{Replaced: before.Revision}
	for _, c := range p.Carried {
		o := s.pending[before.Name][c.ID]
		if o == nil || o.Revision != before.Revision {
			continue
		}
		result.Carried++
		o.Revision, o.Position, o.Part = c.As.Revision, c.As.Position, c.As.Part
		if o.Held(p.Now) {
			result.InFlight++
		} else {
			o.Priority = c.As.Priority
		}
	}
	_, held := s.removeAll(before.Name, before.Revision, p.Now)
	result.InFlight += held
	return result
}

// Cancel implements [store.Jobs].
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	results := make([]store.CancelResult, len(names))
	for i, n := range names {
		results[i] = s.cancel(n, asked)
	}
	return results, nil
}

func (s *Store) cancel(n job.Name, asked store.Asked) store.CancelResult {
	j, total, held := s.jobs[n], 0, 0
	if j != nil {
		if asked.Newer.Has(j.Version) {
			return store.CancelResult{Superseded: true}
		}
		total, held = s.removeAll(n, j.Revision, asked.Now)
		delete(s.jobs, n)
	}
	own, ownHeld := s.removeAll(n, "", asked.Now)
	inFlight := held + ownHeld
	return store.CancelResult{Found: j != nil || own > 0, Cancelled: total + own - inFlight, InFlight: inFlight}
}

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	target, err := keptTarget(job.Target{Callback: a.Callback, Options: a.Options})
	if err != nil {
		return err
	}
	return s.change(ctx, a.Name, func(j *entry) error {
		if j.Version != a.Of {
			return store.ErrPrecondition
		}
		j.Version, j.UpdatedAt, j.Callback, j.Options = a.Version, millis(a.Now), target.Callback, target.Options
		return nil
	})
}

// Pause implements [store.Jobs]. Without its token, an expansion that is under way comes to nothing.
func (s *Store) Pause(ctx context.Context, n job.Name, version job.Revision, now time.Time) error {
	return s.change(ctx, n, func(j *entry) error {
		if j.PausedAt.IsZero() {
			j.PausedAt, j.Version, j.UpdatedAt, j.ExpandAt, j.token = millis(now), version, millis(now), time.Time{}, ""
		}
		return nil
	})
}

// Resume implements [store.Jobs].
func (s *Store) Resume(ctx context.Context, n job.Name, version job.Revision, now time.Time) error {
	return s.change(ctx, n, func(j *entry) error {
		if !j.PausedAt.IsZero() {
			j.PausedAt, j.Version, j.UpdatedAt = time.Time{}, version, millis(now)
			if !j.Cursor.IsZero() {
				j.ExpandAt = millis(now)
			}
		}
		for _, o := range s.pending[n] {
			soonest := o.Timestamp
			if soonest.Before(now) {
				soonest = millis(now)
			}
			if o.Revision == j.Revision && o.Token == "" && o.DueAt.After(soonest) {
				o.DueAt = soonest
			}
		}
		return nil
	})
}

// Trigger implements [store.Jobs].
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	own, err := keptTarget(*o.Own)
	if err != nil {
		return err
	}
	return s.change(ctx, o.Name, func(*entry) error {
		o = fresh(o)
		o.Own = own
		s.insert(o)
		return nil
	})
}

// change runs f on a job, or answers [store.ErrNotFound].
func (s *Store) change(ctx context.Context, n job.Name, f func(*entry) error) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	if s.jobs[n] == nil {
		return store.ErrNotFound
	}
	return f(s.jobs[n])
}

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) (all []store.JobStatus, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	selected := func(n job.Name) bool {
		return n.Tenant == f.Tenant && n.Key > f.After &&
			(f.Key == "" || n.Key == f.Key) && strings.HasPrefix(n.Key, f.Prefix)
	}
	for n, j := range s.jobs {
		if !selected(n) {
			continue
		}
		listed := j.Job
		if !f.Whole {
			listed.Schedule, listed.Callback.Data, listed.Options = job.Schedule{}, nil, job.Options{}
		}
		all = append(all, s.status(listed))
	}
	for n := range s.pending {
		if f.Standalone && s.jobs[n] == nil && selected(n) {
			all = append(all, store.JobStatus{Job: job.Job{Name: n}})
		}
	}
	slices.SortFunc(all, func(a, b store.JobStatus) int { return cmp.Compare(a.Key, b.Key) })
	return page(all, f.Limit), nil
}

// Occurrences implements [store.Jobs].
func (s *Store) Occurrences(ctx context.Context, f store.OccurrenceFilter) (
	all []job.Occurrence, total int, err error,
) {
	if err := s.begin(ctx); err != nil {
		return nil, 0, err
	}
	defer s.mutex.Unlock()
	for _, o := range byID(s.pending[f.Name]) {
		if o.Revision != f.Revision && o.Revision != "" {
			continue
		}
		if f.Count {
			total++
		}
		if o.ID.Compare(f.After) > 0 {
			brief := *o
			brief.Own = nil
			all = append(all, brief)
		}
	}
	return page(all, f.Limit), total, nil
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) (all []job.Occurrence, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for _, o := range byID(s.dead) {
		if o.Name.Tenant != f.Tenant || f.Key != "" && o.Name.Key != f.Key || !strings.HasPrefix(o.Name.Key, f.Prefix) ||
			f.ID != (job.ID{}) && o.ID != f.ID || o.ID.Compare(f.After) <= 0 {
			continue
		}
		d, own := *o, *o.Own
		if f.Brief {
			own.Callback.Data = nil
		}
		d.Own = &own
		all = append(all, d)
	}
	return page(all, f.Limit), nil
}

// SettleDead implements [store.Jobs].
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (n int, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mutex.Unlock()
	for _, id := range d.IDs {
		o := s.dead[id]
		if o == nil || o.Name.Tenant != d.Tenant {
			continue
		}
		n++
		delete(s.dead, id)
		if d.Outcome == store.Redrive {
			o.DueAt, o.Attempt, o.FailedAt, o.LastError = millis(d.Now), 0, time.Time{}, ""
			s.insert(*o)
		}
	}
	return n, nil
}
