package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) (all []store.Record, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for key, r := range s.records[f.Collection] {
		if key > f.After && strings.HasPrefix(key, f.Prefix) && (len(f.Keys) == 0 || slices.Contains(f.Keys, key)) &&
			!expiredAt(r, f.Now) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b store.Record) int { return cmp.Compare(a.Key, b.Key) })
	return page(all, f.Limit), nil
}

// WriteRecords implements [store.Records].
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	errs := make([]error, len(changes))
	err := s.begin(ctx)
	if err == nil {
		defer s.mutex.Unlock()
	}
	for i, c := range changes {
		if errs[i] = err; err == nil {
			errs[i] = s.writeRecord(c)
		}
	}
	return errs
}

func (s *Store) writeRecord(c store.RecordChange) error {
	collection := s.records[c.Collection]
	present := collection[c.Key]
	if expiredAt(present, c.Now) {
		present = store.Record{}
	}
	switch {
	case present.Version == c.Version: // it was made before
		return nil
	case c.Body == nil && present.Version == "": // it is not there
		return nil
	case !c.If.Holds(present.Version):
		return store.ErrPrecondition
	case len(c.Body) > store.MaxRecordBody:
		return store.ErrTooLarge
	}
	if collection == nil {
		collection = map[string]store.Record{}
		s.records[c.Collection] = collection
	}
	if c.Body == nil {
		delete(collection, c.Key)
		return nil
	}
	collection[c.Key] = store.Record{Key: c.Key, Version: c.Version, Body: bytes.Clone(c.Body), ExpiresAt: millis(c.ExpiresAt)}
	return nil
}

// expiredAt tells whether a record has ceased to exist at now.
func expiredAt(r store.Record, now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now)
}
