package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Export implements [store.Transfer]. A place is the name of a document.
func (s *Store) Export(ctx context.Context, after store.Place, limit int) (
	documents []store.Document, next store.Place, err error,
) {
	if err := s.begin(ctx); err != nil {
		return nil, "", err
	}
	defer s.mutex.Unlock()
	for _, j := range s.jobs {
		documents = append(documents, store.Document{Job: &j.Job})
	}
	for _, pending := range s.pending {
		for _, o := range pending {
			documents = append(documents, store.Document{Occurrence: o})
		}
	}
	for _, o := range s.dead {
		documents = append(documents, store.Document{Occurrence: o})
	}
	documents = slices.DeleteFunc(documents, func(d store.Document) bool { return place(d) <= after })
	slices.SortFunc(documents, func(a, b store.Document) int { return cmp.Compare(place(a), place(b)) })
	documents = page(documents, limit)
	for i := range documents { // what was found may change once the mutex is free
		if d := &documents[i]; d.Job != nil {
			j := *d.Job
			d.Job, next = &j, place(*d)
		} else {
			o := *d.Occurrence
			d.Occurrence, next = &o, place(*d)
		}
	}
	return documents, next, nil
}

// place tells documents apart. Those of jobs sort before those of occurrences.
func place(d store.Document) store.Place {
	if d.Job != nil {
		return store.Place("job:" + d.Job.Tenant + "/" + d.Job.Key)
	}
	return store.Place("occurrence:" + d.Occurrence.ID.String())
}

// Import implements [store.Transfer]. An occurrence that would fire nowhere is left out.
func (s *Store) Import(ctx context.Context, documents []store.Document) (inserted int, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mutex.Unlock()
	for _, d := range documents {
		var added bool
		if d.Job != nil {
			added, err = s.importJob(*d.Job)
		} else {
			added, err = s.importOccurrence(*d.Occurrence)
		}
		if err != nil {
			return inserted, err
		}
		if added {
			inserted++
		}
	}
	return inserted, nil
}

func (s *Store) importJob(j job.Job) (added bool, err error) {
	if there := s.jobs[j.Name]; there != nil {
		if there.Revision != j.Revision || there.Version != j.Version {
			return false, fmt.Errorf("%w: %s", store.ErrConflict, j.Name)
		}
		return false, nil
	}
	if j, err = kept(j); err != nil {
		return false, err
	}
	s.jobs[j.Name] = &entry{Job: j}
	return true, nil
}

func (s *Store) importOccurrence(o job.Occurrence) (added bool, err error) {
	if o.Own != nil {
		if o.Own, err = keptTarget(*o.Own); err != nil {
			return false, err
		}
	}
	if !o.FailedAt.IsZero() {
		if s.dead[o.ID] != nil || s.pending[o.Name][o.ID] != nil {
			return false, nil
		}
		s.dead[o.ID] = &o
		return true, nil
	}
	if o.Revision != "" {
		j := s.jobs[o.Name]
		if j == nil || j.Revision != o.Revision || !j.Cursor.IsZero() && o.Timestamp.After(j.Cursor) {
			return false, nil
		}
	}
	return s.insert(o), nil
}
