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

// recordKey tells records apart.
type recordKey struct{ collection, key string }

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) (all []store.Record, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for k, r := range s.records {
		if k.collection == f.Collection && k.key > f.After && strings.HasPrefix(k.key, f.Prefix) &&
			(len(f.Keys) == 0 || slices.Contains(f.Keys, k.key)) && !expiredAt(r, f.Now) {
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
	for i := range changes {
		if errs[i] = err; err == nil {
			errs[i] = s.writeRecord(&changes[i])
		}
	}
	return errs
}

func (s *Store) writeRecord(c *store.RecordChange) error {
	k := recordKey{c.Collection, c.Key}
	present := s.records[k]
	if expiredAt(present, c.Now) {
		present = store.Record{}
	}
	write, err := c.Judge(present.Version)
	switch {
	case !write:
		return err
	case c.Body == nil:
		delete(s.records, k)
	default:
		s.records[k] = store.Record{Key: c.Key, Version: c.Version, Body: bytes.Clone(c.Body), ExpiresAt: millis(c.ExpiresAt)}
	}
	return nil
}

// expiredAt tells whether a record has ceased to exist at now.
func expiredAt(r store.Record, now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(now)
}
