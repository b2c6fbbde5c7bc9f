package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A place is behind a job, with its name, or behind an occurrence, with its revision and id. The occurrences come after
// all jobs.
const (
	placeJob        = "job:"        // followed by the tenant and the key, escaped, with a slash between them
	placeOccurrence = "occurrence:" // followed by the revision, unless it is empty, a slash and the id
)

// largestPage bounds the bytes of large fields in a page of an export, and in one transaction. The document that
// reaches the bound is the page's last.
const largestPage = 8 << 20

// The rows of a page up to the one that reaches the bound. The server knows the length of a value without reading it.
const (
	exportJobsSQL = `SELECT ` + jobColumnsSQL + `, j.callback_data, j.options, j.schedule FROM (
			SELECT *, sum(length(callback_data) + coalesce(length(options), 0) + length(schedule))
				OVER (ORDER BY tenant, key ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size
			FROM (SELECT * FROM carillon.jobs WHERE (tenant, key) > ($1, $2) ORDER BY tenant, key LIMIT $3) page
		) j WHERE coalesce(j.size, 0) < $4 ORDER BY j.tenant, j.key`

	exportOccurrencesSQL = `SELECT coalesce(o.tenant, j.tenant), coalesce(o.key, j.key), ` + occurrenceColumnsSQL + `,
			o.callback_type, o.callback_data, o.options FROM (
			SELECT *, sum(coalesce(length(callback_data), 0) + coalesce(length(options), 0))
				OVER (ORDER BY revision, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS size
			FROM (SELECT * FROM carillon.occurrences WHERE (revision, id) > ($1, $2) ORDER BY revision, id LIMIT $3) page
		) o LEFT JOIN carillon.jobs j ON j.revision = ANY (ARRAY[o.revision])
		WHERE coalesce(o.size, 0) < $4 ORDER BY o.revision, o.id`
)

// Export implements [store.Transfer]. It reads jobs in the order of their names, and occurrences in the order of their
// revisions and ids. Only a burial changes those, and it moves an occurrence behind all occurrences of jobs.
func (s *Store) Export(
	ctx context.Context, after store.Place, limit int,
) (records []store.Document, next store.Place, err error) {
	if behind, ok := strings.CutPrefix(string(after), placeOccurrence); ok {
		revision, id, _ := strings.Cut(behind, "/")
		last, err := job.ParseID(id)
		if under := keptUnder(job.Revision(revision)); err == nil && under.Valid {
			return s.exportOccurrences(ctx, under, last, limit)
		}
		return nil, "", fmt.Errorf("%q is no place in an export of this store", after)
	}
	name, err := parseJobPlace(after)
	if err != nil {
		return nil, "", err
	}
	err = s.transact(ctx, func(t *transaction) {
		records = nil
		var r jobRow
		t.rows(exportJobsSQL, func(rows pgx.Rows) error {
			var callbackData, options, schedule []byte
			status, err := r.scan(rows, &callbackData, &options, &schedule)
			if err != nil {
				return err
			}
			j := status.Job
			j.Callback.Data = callbackData
			if j.Options, err = job.DecodeOptions(options); err == nil {
				j.Schedule, err = job.DecodeSchedule(schedule)
			}
			if err != nil {
				return fmt.Errorf("job %s: %w", j.Name, err)
			}
			records = append(records, store.Document{Job: &j})
			return nil
		}, name.Tenant, name.Key, limit, largestPage)
	})
	if err != nil {
		return nil, "", err
	}
	if len(records) == 0 {
		return s.exportOccurrences(ctx, uuid(job.ID{}), job.ID{}, limit)
	}
	last := records[len(records)-1].Job.Name
	return records, store.Place(placeJob + url.PathEscape(last.Tenant) + "/" + url.PathEscape(last.Key)), nil
}

// parseJobPlace returns the name of the job that a place is behind; for the beginning, one that sorts before all names.
func parseJobPlace(p store.Place) (name job.Name, err error) {
	if p == "" {
		return name, nil
	}
	escaped, ok := strings.CutPrefix(string(p), placeJob)
	tenant, key, cut := strings.Cut(escaped, "/")
	var tenantErr, keyErr error
	name.Tenant, tenantErr = url.PathUnescape(tenant)
	name.Key, keyErr = url.PathUnescape(key)
	if !ok || !cut || tenantErr != nil || keyErr != nil || !storable(name.Tenant, name.Key) {
		return job.Name{}, fmt.Errorf("%q is no place in an export of this store", p)
	}
	return name, nil
}

// exportOccurrences exports the occurrences behind a revision and an id. None is an orphan or beyond its job's cursor,
// because a job and its occurrences change in one transaction.
func (s *Store) exportOccurrences(
	ctx context.Context, revision pgtype.UUID, id job.ID, limit int,
) (records []store.Document, next store.Place, err error) {
	err = s.transact(ctx, func(t *transaction) {
		records = nil
		var r occurrenceRow
		var targets targetReader
		t.rows(exportOccurrencesSQL, func(rows pgx.Rows) error {
			var callbackType *string
			var callbackData, options []byte
			o, err := r.scan(rows, &callbackType, &callbackData, &options)
			if err != nil {
				return err
			}
			if callbackType != nil {
				own, err := targets.read(callbackType, callbackData, options)
				if err != nil {
					return fmt.Errorf("occurrence %s of job %s: %w", o.ID, o.Name, err)
				}
				o.Own = &own
			}
			records = append(records, store.Document{Occurrence: &o})
			return nil
		}, revision, uuid(id), limit, largestPage)
	})
	if err != nil {
		return nil, "", err
	}
	if len(records) > 0 {
		last := records[len(records)-1].Occurrence
		next = store.Place(placeOccurrence + string(last.Revision) + "/" + last.ID.String())
	}
	return records, next, nil
}
