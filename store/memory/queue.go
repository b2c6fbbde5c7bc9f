package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue].
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (claim store.Claim, err error) {
	if err := s.begin(ctx); err != nil {
		return claim, err
	}
	defer s.mutex.Unlock()
	token := job.NewToken()
	for _, q := range p.Quotas {
		found, left := s.claim(p, q, token)
		claim.Occurrences, claim.Quotas = append(claim.Occurrences, found...), append(claim.Quotas, left)
	}
	return claim, nil
}

// claim claims by one quota, and tells what is left of it.
func (s *Store) claim(p store.ClaimParams, q store.Quota, token string) (found []store.Claimed, left store.QuotaLeft) {
	after, until := p.Range(q)
	lane := s.inLane(q.Lane)
	for _, o := range lane {
		if len(found) == q.Limit || o.DueAt.After(until) {
			break
		}
		if !o.DueAt.After(after) {
			continue
		}
		target := o.Own
		if o.Revision != "" {
			j := s.jobs[o.Name]
			if !j.PausedAt.IsZero() {
				o.DueAt, o.ScheduledAt, o.Token = millis(store.PutBackPaused(o.Timestamp, j.PausedAt, p)), time.Time{}, ""
				left.More = true
				continue
			}
			of := j.Target()
			target = &of
		}
		reclaimed := !o.ScheduledAt.IsZero()
		o.Token, o.ScheduledAt, o.DueAt = token, millis(p.Now), millis(p.Now.Add(p.Lease))
		o.Attempt++
		found = append(found, store.Claimed{Occurrence: *o, Target: *target, Reclaimed: reclaimed})
	}
	left.Found, left.More = len(found), left.More || len(found) == q.Limit
	for _, o := range lane {
		if o.DueAt.After(p.Due()) && (left.Next.IsZero() || o.DueAt.Before(left.Next)) {
			left.Next = o.DueAt
		}
	}
	return found, left
}

// ClaimJobs implements [store.Queue].
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	if err := s.begin(ctx); err != nil {
		return store.ClaimedJobs{}, err
	}
	defer s.mutex.Unlock()
	var due []*entry
	for _, j := range s.jobs {
		if !j.ExpandAt.IsZero() && !j.ExpandAt.After(p.Now) {
			due = append(due, j)
		}
	}
	slices.SortFunc(due, func(a, b *entry) int {
		return cmp.Or(a.ExpandAt.Compare(b.ExpandAt), compareNames(a.Name, b.Name))
	})
	due = page(due, p.Limit)
	claimed := store.ClaimedJobs{Token: job.NewToken(), More: len(due) == p.Limit}
	for _, j := range due {
		j.ExpandAt, j.token = millis(p.Now.Add(p.Lease)), claimed.Token
		brief := j.Job
		brief.Callback.Data = nil
		claimed.Jobs = append(claimed.Jobs, brief)
	}
	return claimed, nil
}

// Advance implements [store.Queue].
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	for i := range advances {
		a := &advances[i]
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
		if !a.ExpiresAt.IsZero() {
			j.ExpiresAt = millis(a.ExpiresAt)
		}
		j.Missed += a.Missed
		j.note(a.Trouble)
		for _, o := range a.Occurrences {
			s.insert(fresh(o))
		}
	}
	return nil
}

// note keeps a trouble unless the job has one of a later instant.
func (j *entry) note(t job.Trouble) {
	if text := t.Encode(); text > j.Trouble.Encode() {
		j.Trouble, _ = job.DecodeTrouble(text) // it can read what it has written
	}
}

// Settle implements [store.Queue].
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	for i := range settlements {
		t := &settlements[i]
		o := s.pending[t.Name][t.ID]
		if o == nil || o.Token == "" || o.Token != t.Token {
			continue
		}
		if err := s.settle(o, t); err != nil {
			return err
		}
	}
	return nil
}

// settle ends the claim of an occurrence. Its job is the one that it is of by now.
func (s *Store) settle(o *job.Occurrence, t *store.Settlement) error {
	j := s.jobs[o.Name]
	if o.Revision == "" {
		j = &entry{} // it stands on its own: nothing is noted of it
	}
	switch t.Outcome {
	case store.Ack:
		s.remove(o)
	case store.Miss:
		s.remove(o)
		j.Missed++
		j.note(t.Trouble())
	case store.Bury:
		own, err := keptTarget(t.Target)
		if err != nil {
			return err
		}
		s.remove(o)
		j.Failed++
		j.note(t.Trouble())
		o.Revision, o.Own, o.LastError, o.FailedAt = "", own, t.Error, millis(t.At)
		o.DueAt, o.ScheduledAt, o.Token = time.Time{}, time.Time{}, ""
		s.dead[o.ID] = o
	case store.Retry, store.Release:
		if t.Outcome == store.Release {
			o.Attempt--
		}
		if t.Outcome == store.Retry || t.Error != "" {
			o.LastError = t.Error
		}
		o.DueAt, o.ScheduledAt, o.Token = millis(t.DueAt), time.Time{}, ""
		if t.KeepUntil.After(j.ExpiresAt) {
			j.ExpiresAt = millis(t.KeepUntil)
		}
	}
	return nil
}

// Sweep implements [store.Queue].
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (swept store.Swept, err error) {
	if err := s.begin(ctx); err != nil {
		return swept, err
	}
	defer s.mutex.Unlock()
	expired := slices.Collect(maps.Values(s.jobs))
	expired = slices.DeleteFunc(expired, func(j *entry) bool { return j.ExpiresAt.After(p.Now) })
	slices.SortFunc(expired, func(a, b *entry) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), compareNames(a.Name, b.Name))
	})
	for _, j := range page(expired, p.Limit) {
		if s.status(j.Job).Live() {
			j.ExpiresAt = millis(p.Now.Add(p.Again))
			continue
		}
		delete(s.jobs, j.Name)
		swept.Jobs++
	}
	old := slices.DeleteFunc(byID(s.dead), func(o *job.Occurrence) bool { return !o.FailedAt.Before(p.FailedBefore) })
	for _, o := range page(old, p.Limit) {
		delete(s.dead, o.ID)
		swept.DeadLetters++
	}
	for k, r := range s.records {
		if swept.Records < p.Limit && expiredAt(r, p.Now) {
			delete(s.records, k)
			swept.Records++
		}
	}
	swept.More = len(expired) >= p.Limit || len(old) >= p.Limit || swept.Records >= p.Limit
	return swept, nil
}
