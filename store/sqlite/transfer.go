package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A place is behind a job, with its name, or behind an occurrence, with its id. The occurrences come after all jobs.
const (
	placeJob        = "job:"        // followed by the tenant and the key, escaped, with a slash between them
	placeOccurrence = "occurrence:" // followed by the id
)

// largestPage is the size, in bytes of callback data, options and schedules, that ends a page of an export: the
// document that exceeds it is the page's last.
const largestPage = 8 << 20

// Export implements [store.Transfer]. It reads jobs in the order of their names, not of their rows: a job that is
// cancelled and put again during the export has another row, but the same name.
func (s *Store) Export(
	ctx context.Context, after store.Place, limit int,
) (records []store.Document, next store.Place, err error) {
	if id, ok := strings.CutPrefix(string(after), placeOccurrence); ok {
		return s.exportOccurrences(ctx, id, limit)
	}
	tenant, key, err := parseJobPlace(after)
	if err != nil {
		return nil, "", err
	}
	rows, err := s.stmt.jobExport.QueryContext(ctx, tenant, key, limit)
	size := 0
	jobs, err := collectUpTo(rows, err, func(r scanner) (j job.Job, large bool, err error) {
		var callbackData, options, schedule []byte
		status, err := scanJob(r, &callbackData, &options, &schedule)
		if err != nil {
			return j, false, err
		}
		size += len(callbackData) + len(options) + len(schedule)
		j = status.Job
		j.Callback.Data = callbackData
		if j.Options, err = job.DecodeOptions(options); err == nil {
			j.Schedule, err = job.DecodeSchedule(schedule)
		}
		if err != nil {
			err = fmt.Errorf("job %s: %w", j.Name, err)
		}
		return j, size > largestPage, err
	})
	if err != nil {
		return nil, "", mapError(ctx, err)
	}
	if len(jobs) == 0 {
		return s.exportOccurrences(ctx, "", limit)
	}
	for i := range jobs {
		records = append(records, store.Document{Job: &jobs[i]})
	}
	last := jobs[len(jobs)-1].Name
	return records, store.Place(placeJob + url.PathEscape(last.Tenant) + "/" + url.PathEscape(last.Key)), nil
}

func parseJobPlace(p store.Place) (tenant, key string, err error) {
	if p == "" {
		return "", "", nil // which sorts before all names
	}
	name, ok := strings.CutPrefix(string(p), placeJob)
	escapedTenant, escapedKey, cut := strings.Cut(name, "/")
	tenant, tenantErr := url.PathUnescape(escapedTenant)
	key, keyErr := url.PathUnescape(escapedKey)
	if !ok || !cut || tenantErr != nil || keyErr != nil {
		return "", "", fmt.Errorf("%q is no place in an export of this store", p)
	}
	return tenant, key, nil
}

// exportOccurrences exports the occurrences behind an id, given as text; empty for all. None is an orphan or beyond its
// job's cursor, because a job and its occurrences change in one transaction.
func (s *Store) exportOccurrences(
	ctx context.Context, after string, limit int,
) (records []store.Document, next store.Place, err error) {
	var id job.ID
	if after != "" {
		if id, err = job.ParseID(after); err != nil {
			return nil, "", err
		}
	}
	rows, err := s.stmt.occurrenceExport.QueryContext(ctx, id[:], limit)
	size := 0
	occurrences, err := collectUpTo(rows, err, func(r scanner) (o job.Occurrence, large bool, err error) {
		if o, err = scanOccurrence(r); err != nil {
			return o, false, fmt.Errorf("occurrence %s of job %s: %w", o.ID, o.Name, err)
		}
		if o.Own != nil {
			size += len(o.Own.Callback.Data)
		}
		return o, size > largestPage, nil
	})
	if err != nil {
		return nil, "", mapError(ctx, err)
	}
	for i := range occurrences {
		records, id = append(records, store.Document{Occurrence: &occurrences[i]}), occurrences[i].ID
	}
	return records, store.Place(placeOccurrence + id.String()), nil
}

// Import implements [store.Transfer]. It leaves out occurrences that do not belong to their jobs, because the jobs
// changed during the export.
func (s *Store) Import(ctx context.Context, records []store.Document) (inserted int, err error) {
	for len(records) > 0 {
		part := records[:min(len(records), largestTransaction)]
		records = records[len(part):]
		n := 0
		err := s.writeMore(ctx, func(tx *sql.Tx) error {
			w := importer{tx: tx, stmt: &s.stmt, job: tx.Stmt(s.stmt.jobInsert), occurrence: tx.Stmt(s.stmt.occurrenceImport)}
			for _, r := range part {
				added, err := w.insert(r)
				if err != nil {
					return err
				}
				n += added
			}
			return nil
		})
		if err != nil {
			return inserted, err
		}
		inserted += n
	}
	return inserted, nil
}

// importer inserts records within one transaction. The statements use the transaction's context.
type importer struct {
	tx              *sql.Tx
	stmt            *statements
	job, occurrence *sql.Stmt
}

// insert returns 1 for a new record, and 0 for one that exists.
func (w *importer) insert(r store.Document) (int, error) {
	if o := r.Occurrence; o != nil {
		return affected(w.occurrence.Exec(importedOccurrence(o)...))
	}
	j := r.Job
	n, err := affected(w.job.Exec(jobValues(j, j.PausedAt, nil)...))
	if n > 0 || err != nil {
		return n, err
	}
	now, err := w.stmt.present(w.tx, j.Name)
	if err == nil && (now.revision != j.Revision || now.version != j.Version) {
		err = fmt.Errorf("%w: %s", store.ErrConflict, j.Name)
	}
	return 0, err
}

// importedOccurrence returns the parameters of occurrenceImport.
func importedOccurrence(o *job.Occurrence) []any {
	priority, lane := laneValues(o)
	if !o.FailedAt.IsZero() {
		lane = laneDead
	}
	var step, subscriber, callbackType, callbackData, options any
	if o.Part != nil {
		step, subscriber = o.Part.Step, nullable(o.Part.Subscriber)
	}
	if o.Own != nil {
		callbackType, callbackData, options = o.Own.Callback.Type, o.Own.Callback.Data, o.Own.Options.Encode()
	}
	return []any{
		o.ID[:], o.Name.Tenant, o.Name.Key, string(o.Revision), o.Position, o.Timestamp.UnixMilli(), priority, lane,
		millis(o.DueAt), millis(o.ScheduledAt), nullable(o.Token), o.Attempt, step, subscriber,
		nullable(o.LastError), millis(o.FailedAt),
		callbackType, callbackData, options,
	}
}
