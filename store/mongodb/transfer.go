package mongodb

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A place names the last job or the last occurrence exported. The occurrences come after all jobs.
const (
	placeJob        = "job:"        // followed by the tenant and the key, escaped, with a slash between them
	placeOccurrence = "occurrence:" // followed by the id
)

// largestPage bounds a page of an export, in bytes of callback data, options and schedules.
const largestPage = 8 << 20

// Export implements [store.Transfer]. Both collections are read in the order of their ids, which nothing changes.
func (s *Store) Export(ctx context.Context, after store.Place, limit int) (
	records []store.Document, next store.Place, err error) {
	if id, ok := strings.CutPrefix(string(after), placeOccurrence); ok {
		return s.exportOccurrences(ctx, id, limit)
	}
	id, err := parseJobPlace(after)
	if err != nil {
		return nil, "", err
	}
	documents, err := readPage(ctx, s.jobs, id, realJobs(), limit, func(d *jobDocument) int {
		return len(d.Callback.Data) + len(d.Options) + len(d.Schedule)
	})
	if err != nil {
		return nil, "", err
	}
	if len(documents) == 0 {
		return s.exportOccurrences(ctx, "", limit)
	}
	for i := range documents {
		status, err := documents[i].status()
		if err != nil {
			return nil, "", fmt.Errorf("job %s: %w", status.Name, err)
		}
		records = append(records, store.Document{Job: &status.Job})
	}
	last := &documents[len(documents)-1]
	return records, store.Place(placeJob + url.PathEscape(last.Tenant) + "/" + url.PathEscape(last.Key)), nil
}

// parseJobPlace reads the id of the job document that a place is behind.
func parseJobPlace(p store.Place) (id string, err error) {
	if p == "" {
		return "", nil // it sorts before all ids
	}
	name, ok := strings.CutPrefix(string(p), placeJob)
	escapedTenant, escapedKey, cut := strings.Cut(name, "/")
	tenant, tenantErr := url.PathUnescape(escapedTenant)
	key, keyErr := url.PathUnescape(escapedKey)
	if !ok || !cut || tenantErr != nil || keyErr != nil {
		return "", fmt.Errorf("%q is no place in an export of this store", p)
	}
	return jobID(job.Name{Tenant: tenant, Key: key}), nil
}

// exportOccurrences exports the occurrences after an id, given as text; empty for all. It leaves out orphans, and
// occurrences beyond their job's cursor, which the job's next expansion makes again.
func (s *Store) exportOccurrences(ctx context.Context, after string, limit int) (
	records []store.Document, next store.Place, err error) {
	if after != "" {
		if _, err := job.ParseID(after); err != nil {
			return nil, "", err
		}
	}
	for len(records) == 0 {
		documents, err := readPage(ctx, s.occurrences, after, nil, limit, func(d *occurrenceDocument) int {
			if d.Callback == nil {
				return 0
			}
			return len(d.Callback.Data)
		})
		if err != nil {
			return nil, "", err
		}
		if len(documents) == 0 {
			break
		}
		after = documents[len(documents)-1].ID
		if records, err = s.matching(ctx, documents); err != nil {
			return nil, "", err
		}
	}
	return records, store.Place(placeOccurrence + after), nil
}

// matching returns the occurrences whose job has their revision, and the standalone ones.
func (s *Store) matching(ctx context.Context, documents []occurrenceDocument) (records []store.Document, err error) {
	jobs := make(map[string]jobDocument)
	for ids := range slices.Chunk(jobIDs(documents), chunk) {
		found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
			options.Find().SetProjection(bson.M{"revision": 1, "cursor": 1}))
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			jobs[d.ID] = d
		}
	}
	for i := range documents {
		d := &documents[i]
		j := jobs[d.jobID()]
		d.inherit(j.Revision)
		o, err := d.occurrence()
		if err != nil {
			return nil, fmt.Errorf("occurrence %s of job %s: %w", d.ID, o.Name, err)
		}
		if d.Revision == "" || d.Revision == j.Revision && (j.Cursor.IsZero() || !d.Timestamp.After(j.Cursor)) {
			records = append(records, store.Document{Occurrence: &o})
		}
	}
	return records, nil
}

// readPage reads the documents that match, in the order of their ids, beginning after one of these. It ends at the
// limit or after the document by which the page exceeds largestPage bytes.
func readPage[T any](
	ctx context.Context, c *mongo.Collection, after string, match bson.M, limit int, size func(*T) int,
) (all []T, err error) {
	cursor, err := c.Find(ctx, both(bson.M{"_id": bson.M{"$gt": after}}, match),
		options.Find().SetSort(keys("_id")).SetLimit(int64(limit)))
	if err != nil {
		return nil, mapError(err)
	}
	defer func() { _ = cursor.Close(ctx) }() // its error does not affect the documents read
	for total := 0; total <= largestPage && cursor.Next(ctx); total += size(&all[len(all)-1]) {
		var d T
		if err := cursor.Decode(&d); err != nil {
			return nil, mapError(err)
		}
		all = append(all, d)
	}
	return all, mapError(cursor.Err())
}

// Import implements [store.Transfer]. It inserts the jobs first, so that no occurrence is an orphan. It does not keep
// how often a dead letter was redriven, which matters only during a cancellation.
func (s *Store) Import(ctx context.Context, records []store.Document) (inserted int, err error) {
	var jobs, occurrences []any
	var asJobs []*job.Job
	for _, r := range records {
		if r.Job != nil {
			jobs, asJobs = append(jobs, importedJob(r.Job)), append(asJobs, r.Job)
		} else {
			occurrences = append(occurrences, importedOccurrence(r.Occurrence))
		}
	}
	inserted, there, err := insertNew(ctx, s.jobs, jobs)
	if errors.Is(err, store.ErrTooLarge) { // which does not name the document
		return inserted, fmt.Errorf("job %s: %w", asJobs[largest(jobs)].Name, err)
	}
	if err != nil {
		return inserted, err
	}
	for _, i := range there {
		replaced, err := s.jobs.ReplaceOne(ctx, both(bson.M{"_id": jobID(asJobs[i].Name)}, stubs()), jobs[i])
		if err != nil {
			return inserted, mapError(err)
		}
		if inserted += int(replaced.MatchedCount); replaced.MatchedCount > 0 {
			continue // it replaced a stub
		}
		if err := s.same(ctx, asJobs[i]); err != nil {
			return inserted, err
		}
	}
	n, _, err := insertNew(ctx, s.occurrences, occurrences)
	return inserted + n, err
}

// same returns [store.ErrConflict] unless the existing job is the same.
func (s *Store) same(ctx context.Context, j *job.Job) error {
	there, err := s.read(ctx, j.Name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if there.revision != j.Revision || there.version != j.Version {
		return fmt.Errorf("%w: %s", store.ErrConflict, j.Name)
	}
	return nil
}

// largest returns the index of the largest document.
func largest(documents []any) (index int) {
	most := 0
	for i, d := range documents {
		if b, err := bson.Marshal(d); err == nil && len(b) > most {
			index, most = i, len(b)
		}
	}
	return index
}

// insertNew inserts the documents whose ids are new. It returns their number, and the indexes of the existing ones.
func insertNew(ctx context.Context, c *mongo.Collection, documents []any) (inserted int, there []int, err error) {
	if len(documents) == 0 {
		return 0, nil, nil
	}
	_, err = c.InsertMany(ctx, documents, options.InsertMany().SetOrdered(false))
	if err != nil && !onlyDuplicates(err) {
		return 0, nil, mapError(err)
	}
	if bulk, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		for _, e := range bulk.WriteErrors {
			there = append(there, e.Index)
		}
	}
	return len(documents) - len(there), there, nil
}

func importedJob(j *job.Job) jobDocument {
	d := newJobDocument(j)
	d.PausedAt = j.PausedAt
	return d
}

func importedOccurrence(o *job.Occurrence) occurrenceDocument {
	d := newOccurrenceDocument(o)
	d.ScheduledAt, d.Token, d.Attempt, d.LastError, d.FailedAt = o.ScheduledAt, o.Token, o.Attempt, o.LastError, o.FailedAt
	if !o.FailedAt.IsZero() {
		d.Lane = laneDead
	}
	return d
}
