// Package memory is the reference store: the contract of package store in the plainest code. It keeps everything in
// maps under one mutex, and nothing outlives the process. Every call examines all documents, so it is meant for tests.
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
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// URL is the URL that opens the store.
const URL = "memory:"

// Store implements [store.Store].
type Store struct {
	mutex sync.Mutex
	jobs  map[job.Name]*entry
	// occurrences has the pending occurrences and the dead letters, which have a FailedAt. A pending occurrence with a
	// revision has the revision of its job.
	occurrences map[job.ID]*job.Occurrence
	records     map[recordKey]store.Record
}

// entry is a job with the token of the claim to expand it; the token is empty if there is none.
type entry struct {
	job.Job
	token string
}

// New makes an empty store. Replicas share it by using the same Store.
func New() *Store {
	return &Store{
		jobs: map[job.Name]*entry{}, occurrences: map[job.ID]*job.Occurrence{}, records: map[recordKey]store.Record{},
	}
}

// Open makes an empty store. [URL] is the only URL that it accepts.
func Open(_ context.Context, rawURL string) (*Store, error) {
	if rawURL != URL {
		return nil, fmt.Errorf("store URL %q: must be %q; a store in memory has no name", rawURL, URL)
	}
	return New(), nil
}

// Close implements [store.Store]. The documents stay, so that other users of the store still find them.
func (s *Store) Close() error { return nil }

// Warnings returns the differences from a reliable store.
func (s *Store) Warnings(context.Context) []string {
	return []string{"jobs are kept in this process's memory: they are gone when it ends, and no other replica has them"}
}

// Now returns this machine's time, since all users of the store run on it.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.do(ctx, func() { now = time.Now() })
	return now, err
}

// do runs a step under the mutex, unless the call may no longer take effect. No step waits, so a step that begins in
// time ends in time.
func (s *Store) do(ctx context.Context, step func()) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) { // its timer may fire late
		err = context.DeadlineExceeded
	}
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrNotDone, err)
	}
	step()
	return nil
}

// Put implements [store.Jobs].
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	if err := s.do(ctx, func() {
		for i := range puts {
			results[i] = s.put(&puts[i])
		}
	}); err != nil {
		return slices.Repeat([]store.PutResult{{Err: err}}, len(puts))
	}
	return results
}

func (s *Store) put(p *store.Put) store.PutResult {
	before := cmp.Or(s.jobs[p.Job.Name], &entry{})
	if err := p.Judge(before.Version, before.Cursor); err != nil {
		return store.PutResult{Err: err}
	}
	result, j := s.replace(p, before), kept(p.Job)
	j.Planned, j.PausedAt = p.Planned(result.Carried), time.Time{}
	if before.Revision != "" && !p.StartsOver {
		j.CreatedAt, j.PausedAt = before.CreatedAt, before.PausedAt
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

// replace gives the put those of the present job's occurrences that it carries over, and deletes the others. Held ones
// are deleted too; their settlements will find nothing.
func (s *Store) replace(p *store.Put, before *entry) store.PutResult {
	result := store.PutResult{Replaced: before.Revision}
	if before.Revision == "" {
		return result
	}
	replaced := func(o *job.Occurrence) bool { return o.Name == before.Name && o.Revision == before.Revision }
	for _, c := range p.Carried {
		o := s.occurrences[c.ID]
		if o == nil || dead(o) || !replaced(o) {
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
	_, held := s.remove(p.Now, replaced)
	result.InFlight += held
	return result
}

// Cancel implements [store.Jobs].
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) (all []store.CancelResult, err error) {
	err = s.do(ctx, func() {
		for _, n := range names {
			j := s.jobs[n]
			if why := asked.Judge(cmp.Or(j, &entry{}).Version); why != nil {
				all = append(all, store.CancelResult{Err: why})
				continue
			}
			delete(s.jobs, n)
			total, held := s.remove(asked.Now, func(o *job.Occurrence) bool { return o.Name == n })
			all = append(all, store.CancelResult{Found: j != nil || total > 0, Cancelled: total - held, InFlight: held})
		}
	})
	return all, err
}

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	return s.change(ctx, a.Name, func(j *entry) error {
		if j.Version != a.Of {
			return store.ErrPrecondition
		}
		j.Version, j.UpdatedAt, j.Callback, j.Options = a.Version, millis(a.Now), a.Callback, a.Options
		return nil
	})
}

// Pause implements [store.Jobs]. It clears the token, so an expansion under way has no effect.
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
		for _, o := range s.occurrences {
			soonest := later(o.Timestamp, millis(now))
			if o.Name == n && o.Revision == j.Revision && o.Token == "" && o.DueAt.After(soonest) {
				o.DueAt = soonest
			}
		}
		return nil
	})
}

// Trigger implements [store.Jobs].
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	return s.change(ctx, o.Name, func(*entry) error {
		s.insert(fresh(o))
		return nil
	})
}

// change runs f on a job, or returns [store.ErrNotFound].
func (s *Store) change(ctx context.Context, n job.Name, f func(*entry) error) (err error) {
	undone := s.do(ctx, func() {
		if err = store.ErrNotFound; s.jobs[n] != nil {
			err = f(s.jobs[n])
		}
	})
	return cmp.Or(undone, err)
}

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) (all []store.JobStatus, err error) {
	match := func(j *entry) bool {
		return j.Tenant == f.Tenant && j.Key > f.After && strings.HasPrefix(j.Key, f.Prefix) &&
			(f.Key == "" || j.Key == f.Key)
	}
	err = s.do(ctx, func() {
		found := maps.Clone(s.jobs)
		for _, o := range s.occurrences {
			if f.Standalone && !dead(o) && s.jobs[o.Name] == nil {
				found[o.Name] = &entry{Job: job.Job{Name: o.Name}}
			}
		}
		all = s.statuses(page(selected(found, match, byName), f.Limit))
	})
	for i := range all {
		if j := &all[i]; !f.Whole {
			j.Schedule, j.Callback.Data, j.Options = job.Schedule{}, nil, job.Options{}
		}
	}
	return all, err
}

// Occurrences implements [store.Jobs].
func (s *Store) Occurrences(ctx context.Context, f store.OccurrenceFilter) (all []job.Occurrence, n int, err error) {
	match := func(o *job.Occurrence) bool {
		return !dead(o) && o.Name == f.Name && (o.Revision == f.Revision || o.Revision == "")
	}
	err = s.do(ctx, func() {
		found := selected(s.occurrences, match, byID)
		if f.Count {
			n = len(found)
		}
		found = slices.DeleteFunc(found, func(o *job.Occurrence) bool { return o.ID.Compare(f.After) <= 0 })
		for _, o := range page(found, f.Limit) {
			brief := *o
			brief.Own = nil
			all = append(all, brief)
		}
	})
	return all, n, err
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) (all []job.Occurrence, err error) {
	match := func(o *job.Occurrence) bool {
		return dead(o) && o.Name.Tenant == f.Tenant && (f.Key == "" || o.Name.Key == f.Key) &&
			strings.HasPrefix(o.Name.Key, f.Prefix) && (f.ID == (job.ID{}) || o.ID == f.ID) && o.ID.Compare(f.After) > 0
	}
	err = s.do(ctx, func() {
		for _, o := range page(selected(s.occurrences, match, byID), f.Limit) {
			d, own := *o, *o.Own
			if f.Brief {
				own.Callback.Data = nil
			}
			d.Own = &own
			all = append(all, d)
		}
	})
	return all, err
}

// SettleDead implements [store.Jobs].
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (n int, err error) {
	err = s.do(ctx, func() {
		for _, id := range d.IDs {
			o := s.occurrences[id]
			if o == nil || !dead(o) || o.Name.Tenant != d.Tenant {
				continue
			}
			n++
			if d.Outcome == store.Redrive {
				o.DueAt, o.Attempt, o.FailedAt, o.LastError = millis(d.Now), 0, time.Time{}, ""
			} else {
				delete(s.occurrences, id)
			}
		}
	})
	return n, err
}

// Claim implements [store.Queue].
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (claim store.Claim, err error) {
	err = s.do(ctx, func() {
		token := job.NewToken()
		for _, q := range p.Quotas {
			found, left := s.claim(p, q, token)
			claim.Occurrences, claim.Quotas = append(claim.Occurrences, found...), append(claim.Quotas, left)
		}
	})
	return claim, err
}

// claim claims by one quota and returns the remainder too.
func (s *Store) claim(p store.ClaimParams, q store.Quota, token string) (found []store.Claimed, left store.QuotaLeft) {
	after, until := p.Range(q)
	match := func(o *job.Occurrence) bool {
		return o.DueAt.After(after) && !o.DueAt.After(until) && inLane(o, q.Lane)
	}
	for _, o := range selected(s.occurrences, match, byDueAt) {
		if len(found) == q.Limit {
			break
		}
		if j := s.jobs[o.Name]; o.Revision != "" && !j.PausedAt.IsZero() {
			o.DueAt, o.ScheduledAt, o.Token = millis(store.PutBackPaused(o.Timestamp, j.PausedAt, p)), time.Time{}, ""
			left.More = true
			continue
		}
		reclaimed := !o.ScheduledAt.IsZero()
		o.Token, o.ScheduledAt, o.DueAt = token, millis(p.Now), millis(p.Now.Add(p.Lease))
		o.Attempt++
		found = append(found, store.Claimed{Occurrence: *o, Target: s.target(o), Reclaimed: reclaimed})
	}
	left.Found, left.More = len(found), left.More || len(found) == q.Limit
	for _, o := range s.occurrences {
		if o.DueAt.After(p.Due()) && (left.Next.IsZero() || o.DueAt.Before(left.Next)) && inLane(o, q.Lane) {
			left.Next = o.DueAt
		}
	}
	return found, left
}

// ClaimJobs implements [store.Queue].
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (claimed store.ClaimedJobs, err error) {
	match := func(j *entry) bool { return !j.ExpandAt.IsZero() && !j.ExpandAt.After(p.Now) }
	err = s.do(ctx, func() {
		due := page(selected(s.jobs, match, byExpandAt), p.Limit)
		claimed.Token, claimed.More = job.NewToken(), len(due) == p.Limit
		for _, j := range due {
			j.ExpandAt, j.token = millis(p.Now.Add(p.Lease)), claimed.Token
			brief := j.Job
			brief.Callback.Data = nil
			claimed.Jobs = append(claimed.Jobs, brief)
		}
	})
	return claimed, err
}

// Advance implements [store.Queue].
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	return s.do(ctx, func() {
		for _, a := range advances {
			j := s.jobs[a.Name]
			if j == nil || j.Revision != a.Revision || !j.Cursor.Equal(a.From) || j.token == "" || j.token != a.Token {
				continue
			}
			j.Cursor, j.ExpandAt, j.token = millis(a.Cursor), millis(a.ExpandAt), ""
			if a.ExpandAt.IsZero() {
				j.Cursor = time.Time{}
			}
			if j.Planned > 0 {
				j.Planned += a.Planned()
			}
			j.ExpiresAt = cmp.Or(millis(a.ExpiresAt), j.ExpiresAt)
			j.Missed += a.Missed
			j.note(a.Trouble)
			for _, o := range a.Occurrences {
				s.insert(fresh(o))
			}
		}
	})
}

// note keeps a trouble unless the job has one of a later instant.
func (j *entry) note(t job.Trouble) {
	if text := t.Encode(); text > j.Trouble.Encode() {
		j.Trouble, _ = job.DecodeTrouble(text) // the store wrote this text itself
	}
}

// Settle implements [store.Queue].
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	return s.do(ctx, func() {
		for _, t := range settlements {
			if o := s.occurrences[t.ID]; o != nil && o.Token != "" && o.Token == t.Token {
				s.settle(o, t)
			}
		}
	})
}

// settle ends the claim of an occurrence and updates the job that owns it now.
func (s *Store) settle(o *job.Occurrence, t store.Settlement) {
	o.ScheduledAt, o.Token = time.Time{}, ""
	j := s.jobs[o.Name]
	if o.Revision == "" {
		j = &entry{} // a standalone occurrence has no job to update
	}
	switch t.Outcome {
	case store.Ack:
		delete(s.occurrences, o.ID)
	case store.Miss:
		delete(s.occurrences, o.ID)
		j.Missed++
		j.note(t.Trouble())
	case store.Bury:
		j.Failed++
		j.note(t.Trouble())
		o.Revision, o.Own, o.LastError, o.FailedAt, o.DueAt = "", &t.Target, t.Error, millis(t.At), time.Time{}
	case store.Retry, store.Release:
		if t.Outcome == store.Release {
			o.Attempt--
		}
		if t.Outcome == store.Retry || t.Error != "" {
			o.LastError = t.Error
		}
		o.DueAt = millis(t.DueAt)
		j.ExpiresAt = later(j.ExpiresAt, millis(t.KeepUntil))
	}
}

// Sweep implements [store.Queue].
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (swept store.Swept, err error) {
	old := func(o *job.Occurrence) bool { return dead(o) && o.FailedAt.Before(p.FailedBefore) }
	err = s.do(ctx, func() {
		expired := selected(s.jobs, func(j *entry) bool { return !j.ExpiresAt.After(p.Now) }, byName)
		for _, j := range s.statuses(page(expired, p.Limit)) {
			if j.Live() {
				s.jobs[j.Name].ExpiresAt = millis(p.Now.Add(p.Again))
				continue
			}
			delete(s.jobs, j.Name)
			swept.Jobs++
		}
		old := selected(s.occurrences, old, byID)
		for _, o := range page(old, p.Limit) {
			delete(s.occurrences, o.ID)
			swept.DeadLetters++
		}
		for k, r := range s.records {
			if swept.Records < p.Limit && !live(r, p.Now) {
				delete(s.records, k)
				swept.Records++
			}
		}
		swept.More = len(expired) >= p.Limit || len(old) >= p.Limit || swept.Records >= p.Limit
	})
	return swept, err
}

// DueLanes implements [store.Inspector].
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (found store.DuePage, err error) {
	match := func(o *job.Occurrence) bool {
		l := store.LaneDue{Lane: o.Lane(), DueAt: o.DueAt}
		return !dead(o) && l.Compare(p.After) > 0 && !o.DueAt.After(p.Until)
	}
	var read []store.DueEntries
	err = s.do(ctx, func() {
		for _, o := range page(selected(s.occurrences, match, byDueAt), p.Limit) {
			read = append(read, store.DueEntries{Lane: o.Lane(), First: o.DueAt, Last: o.DueAt, N: 1})
		}
	})
	return store.DuePageOf(read, p.Limit), err
}

// Count implements [store.Inspector].
func (s *Store) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) (all []store.Count, err error) {
	var whole store.Count
	of := map[job.Lane]store.Count{}
	err = s.do(ctx, func() {
		for _, o := range s.occurrences {
			c := of[o.Lane()]
			if dead(o) {
				whole.DeadLetters++
			} else if c.Pending++; !o.DueAt.After(now) {
				c.Due++
				whole.Due++
			}
			of[o.Lane()] = c
		}
		whole.Pending = len(s.occurrences) - whole.DeadLetters
	})
	for _, l := range lanes {
		all = append(all, store.Count{Pending: min(of[l].Pending, limit), Due: min(of[l].Due, limit)})
	}
	if len(lanes) == 0 {
		all = append(all, whole)
	}
	return all, err
}

// Sample implements [store.Inspector].
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) (all []store.Sampled, err error) {
	match := func(o *job.Occurrence) bool { return !o.DueAt.Before(from) && inLane(o, lane) }
	err = s.do(ctx, func() {
		for _, o := range page(selected(s.occurrences, match, byDueAt), limit) {
			all = append(all, store.Sampled{DueAt: o.DueAt, Callback: s.target(o).Callback})
		}
	})
	return all, err
}

// Export implements [store.Transfer]. A place is the name of a document.
func (s *Store) Export(ctx context.Context, after store.Place, limit int) (
	all []store.Document, next store.Place, err error,
) {
	err = s.do(ctx, func() {
		places := map[store.Place]store.Document{}
		for n, j := range s.jobs {
			of := j.Job
			places[store.Place("job:"+n.Tenant+"/"+n.Key)] = store.Document{Job: &of}
		}
		for id, o := range s.occurrences {
			of := *o
			places[store.Place("occurrence:"+id.String())] = store.Document{Occurrence: &of}
		}
		for _, at := range slices.Sorted(maps.Keys(places)) {
			if at > after && len(all) < limit {
				all, next = append(all, places[at]), at
			}
		}
	})
	return all, next, err
}

// Import implements [store.Transfer]. It leaves out an occurrence that would never fire.
func (s *Store) Import(ctx context.Context, documents []store.Document) (inserted int, err error) {
	undone := s.do(ctx, func() {
		for _, d := range documents {
			if d.Job == nil {
				inserted += s.importOccurrence(*d.Occurrence)
			} else if there := s.jobs[d.Job.Name]; there == nil {
				s.jobs[d.Job.Name] = &entry{Job: kept(*d.Job)}
				inserted++
			} else if there.Revision != d.Job.Revision || there.Version != d.Job.Version {
				err = fmt.Errorf("%w: %s", store.ErrConflict, d.Job.Name)
				return
			}
		}
	})
	return inserted, cmp.Or(undone, err)
}

func (s *Store) importOccurrence(o job.Occurrence) int {
	j := s.jobs[o.Name]
	if o.Revision != "" && (j == nil || j.Revision != o.Revision || !j.Cursor.IsZero() && o.Timestamp.After(j.Cursor)) {
		return 0
	}
	return s.insert(o)
}

// recordKey identifies a record.
type recordKey struct{ collection, key string }

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) (all []store.Record, err error) {
	err = s.do(ctx, func() {
		for k, r := range s.records {
			if k.collection == f.Collection && k.key > f.After && strings.HasPrefix(k.key, f.Prefix) &&
				(len(f.Keys) == 0 || slices.Contains(f.Keys, k.key)) && live(r, f.Now) {
				all = append(all, r)
			}
		}
	})
	slices.SortFunc(all, func(a, b store.Record) int { return cmp.Compare(a.Key, b.Key) })
	return page(all, f.Limit), err
}

// WriteRecords implements [store.Records].
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	errs := make([]error, len(changes))
	if err := s.do(ctx, func() {
		for i := range changes {
			errs[i] = s.writeRecord(&changes[i])
		}
	}); err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	return errs
}

func (s *Store) writeRecord(c *store.RecordChange) error {
	k := recordKey{c.Collection, c.Key}
	present := s.records[k]
	if !live(present, c.Now) {
		present = store.Record{}
	}
	write, err := c.Judge(present.Version)
	if write {
		s.records[k] = store.Record{Key: c.Key, Version: c.Version, Body: c.Body, ExpiresAt: millis(c.ExpiresAt)}
	}
	if write && c.Body == nil {
		delete(s.records, k)
	}
	return err
}

// live reports whether a record exists at now.
func live(r store.Record, now time.Time) bool { return r.ExpiresAt.IsZero() || r.ExpiresAt.After(now) }

// selected returns the matching values of a map, sorted.
func selected[K comparable, V any](all map[K]V, match func(V) bool, compare func(a, b V) int) (found []V) {
	for _, v := range all {
		if match(v) {
			found = append(found, v)
		}
	}
	slices.SortFunc(found, compare)
	return found
}

// page returns the first entries of a list, up to a limit.
func page[T any](all []T, limit int) []T { return all[:min(len(all), limit)] }

func byName(a, b *entry) int        { return cmp.Compare(a.Tenant+" "+a.Key, b.Tenant+" "+b.Key) }
func byExpandAt(a, b *entry) int    { return cmp.Or(a.ExpandAt.Compare(b.ExpandAt), byName(a, b)) }
func byID(a, b *job.Occurrence) int { return a.ID.Compare(b.ID) }
func byDueAt(a, b *job.Occurrence) int {
	return cmp.Or(a.DueAt.Compare(b.DueAt), job.CompareLanes(a.Lane(), b.Lane()), byID(a, b))
}

// dead reports whether an occurrence is a dead letter; otherwise it is pending.
func dead(o *job.Occurrence) bool { return !o.FailedAt.IsZero() }

// inLane reports whether an occurrence is pending and in a lane.
func inLane(o *job.Occurrence, l job.Lane) bool { return o.Lane() == l && !dead(o) }

// target returns the callback and options of a pending occurrence: its own, or its job's.
func (s *Store) target(o *job.Occurrence) job.Target {
	if o.Own != nil {
		return *o.Own
	}
	return s.jobs[o.Name].Target()
}

// insert adds an occurrence unless its id exists, pending or dead. It returns the number added.
func (s *Store) insert(o job.Occurrence) int {
	if s.occurrences[o.ID] != nil {
		return 0
	}
	s.occurrences[o.ID] = &o
	return 1
}

// remove deletes the matching pending occurrences, and returns their number and the number of those held at now.
func (s *Store) remove(now time.Time, match func(*job.Occurrence) bool) (total, held int) {
	for id, o := range s.occurrences {
		if !dead(o) && match(o) {
			delete(s.occurrences, id)
			if total++; o.Held(now) {
				held++
			}
		}
	}
	return total, held
}

// statuses returns the jobs with the first pending occurrence of each.
func (s *Store) statuses(jobs []*entry) []store.JobStatus {
	all, first := make([]store.JobStatus, len(jobs)), map[job.Name]job.ID{}
	for _, o := range s.occurrences {
		if at, has := first[o.Name]; o.Revision != "" && (!has || at.Compare(o.ID) > 0) {
			first[o.Name] = o.ID
		}
	}
	for i, j := range jobs {
		all[i] = store.JobStatus{Job: j.Job, Next: job.InstantOf(first[j.Name])}
	}
	return all
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// kept returns a job as stores keep it.
func kept(j job.Job) job.Job {
	j.CreatedAt, j.UpdatedAt, j.ExpiresAt = millis(j.CreatedAt), millis(j.UpdatedAt), millis(j.ExpiresAt)
	j.PausedAt, j.Cursor, j.ExpandAt = millis(j.PausedAt), millis(j.Cursor), millis(j.ExpandAt)
	return j
}

// fresh returns an occurrence reduced to the fields that it has when it is inserted.
func fresh(o job.Occurrence) job.Occurrence {
	return job.Occurrence{
		ID: o.ID, Name: o.Name, Priority: o.Priority, Revision: o.Revision, Position: o.Position, Part: o.Part,
		Timestamp: millis(o.Timestamp), DueAt: millis(o.DueAt), Own: o.Own,
	}
}

// millis returns a time as stores keep it: whole milliseconds in UTC.
func millis(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
