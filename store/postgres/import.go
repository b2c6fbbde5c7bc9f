package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Import implements [store.Transfer]. The jobs come first, and then the occurrences, in transactions of bounded size
// that each lock rows in order.
//
// It leaves out occurrences that do not belong to their jobs, because the jobs changed during the export or are changed
// in this store at this moment: a claim would take them.
func (s *Store) Import(ctx context.Context, records []store.Document) (inserted int, err error) {
	var jobs []*job.Job
	var occurrences []*job.Occurrence
	for _, r := range records {
		if r.Job != nil {
			jobs = append(jobs, r.Job)
		} else {
			occurrences = append(occurrences, r.Occurrence)
		}
	}
	for len(jobs) > 0 {
		part := upTo(jobs, func(j *job.Job) int { return len(j.Callback.Data) })
		jobs = jobs[len(part):]
		n, err := s.importJobs(ctx, part)
		if err != nil {
			return inserted, err
		}
		inserted += n
	}
	for len(occurrences) > 0 {
		part := upTo(occurrences, func(o *job.Occurrence) int {
			if o.Own == nil {
				return 0
			}
			return len(o.Own.Callback.Data)
		})
		occurrences = occurrences[len(part):]
		n, err := s.importOccurrences(ctx, part)
		if err != nil {
			return inserted, err
		}
		inserted += n
	}
	return inserted, nil
}

// upTo returns the number of items from the front of left that one transaction takes, limited by count and size.
func upTo[T any](left []T, size func(T) int) []T {
	n, total := 0, 0
	for n < min(len(left), chunk) && total < largestPage {
		total += size(left[n])
		n++
	}
	return left[:n]
}

// importJobs inserts jobs, or none if any of their names has a different job.
func (s *Store) importJobs(ctx context.Context, jobs []*job.Job) (inserted int, err error) {
	jobs = slices.SortedStableFunc(slices.Values(jobs), func(a, b *job.Job) int { return compareNames(a.Name, b.Name) })
	var c jobColumns
	for _, j := range jobs {
		c.add(j)
	}
	err = s.converse(ctx, func(ctx context.Context, tx *conversation) error {
		var others []job.Name
		err := tx.do(ctx, func(t *transaction) {
			t.affected(&inserted, `INSERT INTO carillon.jobs (tenant, key, revision, version, callback_type, callback_data,
					options, schedule, created_at, updated_at, expires_at, cursor_at, expand_at, missed, paused_at,
					planned, failed, trouble)
				SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::bytea[],
					$7::bytea[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
					$13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::text[])
				ON CONFLICT (tenant, key) DO NOTHING`,
				c.tenant, c.key, c.revision, c.version, c.callbackType, c.callbackData, c.options, c.schedule,
				c.createdAt, c.updatedAt, c.expiresAt, c.cursor, c.expandAt, c.missed, c.pausedAt, c.planned, c.failed, c.trouble)
			t.rows(`SELECT n.tenant, n.key FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[])
					AS n (tenant, key, revision, version)
				WHERE NOT EXISTS (SELECT FROM carillon.jobs j
					WHERE j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key
						AND j.revision = n.revision AND j.version = n.version)
				LIMIT 1`,
				func(rows pgx.Rows) error {
					var name job.Name
					err := rows.Scan(&name.Tenant, &name.Key)
					others = append(others, name)
					return err
				}, c.tenant, c.key, c.revision, c.version)
		})
		if err == nil && len(others) > 0 {
			err = fmt.Errorf("%w: %s", store.ErrConflict, others[0])
		}
		return err
	})
	return inserted, err
}

// importOccurrences inserts the occurrences that belong to their jobs, which it locks until then. An occurrence that
// exists in the other form, pending or buried, is found by its id, as a standalone one or in its job's revision.
func (s *Store) importOccurrences(ctx context.Context, occurrences []*job.Occurrence) (inserted int, err error) {
	occurrences = slices.SortedStableFunc(slices.Values(occurrences), func(a, b *job.Occurrence) int {
		return compareKept(a.Revision, b.Revision, a.ID, b.ID)
	})
	var c importColumns
	ids := make(map[job.ID]bool)
	var names []job.Name
	for _, o := range occurrences {
		if !ids[o.ID] { // the pending form of an occurrence comes before its dead letter
			ids[o.ID] = true
			c.add(o)
			names = append(names, o.Name)
		}
	}
	slices.SortFunc(names, compareNames)
	names = slices.Compact(names)
	tenants, keys := nameColumns(names)
	err = s.transact(ctx, func(t *transaction) {
		t.exec(`SELECT FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (tenant, key, place)
			JOIN carillon.jobs j ON j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key
			ORDER BY n.place FOR NO KEY UPDATE OF j`, tenants, keys)
		t.affected(&inserted, `INSERT INTO carillon.occurrences (id, lane, tenant, key, revision, position, step,
				subscriber, timestamp, due_at, scheduled_at, token, attempt, last_error, failed_at,
				callback_type, callback_data, options)
			SELECT n.id, n.lane, n.tenant, n.key, n.revision, n.position, n.step,
				n.subscriber, n.timestamp, n.due_at, n.scheduled_at, n.token, n.attempt, n.last_error, n.failed_at,
				n.callback_type, n.callback_data, n.options
			FROM unnest($1::uuid[], $19::text[], $2::text[], $3::text[], $4::uuid[], $5::integer[], $6::integer[],
				$7::text[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::integer[], $13::text[],
				$14::bigint[], $15::text[], $16::bytea[], $17::bytea[])
				AS n (id, lane, tenant, key, revision, position, step,
					subscriber, timestamp, due_at, scheduled_at, token, attempt, last_error, failed_at,
					callback_type, callback_data, options)
			WHERE CASE WHEN n.revision = $18 THEN NOT EXISTS (SELECT FROM carillon.jobs j
					JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[j.revision]) AND o.id = n.id
					WHERE j.tenant = n.tenant AND j.key = n.key)
				ELSE EXISTS (SELECT FROM carillon.jobs j
					WHERE j.revision = n.revision AND (j.cursor_at IS NULL OR j.cursor_at >= n.timestamp))
				AND NOT EXISTS (SELECT FROM carillon.occurrences o WHERE o.revision = $18 AND o.id = n.id) END
			ON CONFLICT (revision, id) DO NOTHING`,
			c.id, c.tenant, c.key, c.revision, c.position, c.step, c.subscriber, c.timestamp, c.dueAt,
			c.scheduledAt, c.token, c.attempt, c.lastError, c.failedAt, c.callbackType, c.callbackData, c.options, own, c.lane)
	})
	return inserted, err
}

// importColumns are complete occurrences of any kind, by column.
type importColumns struct {
	id, revision                 []pgtype.UUID
	tenant, key                  []*string
	lane                         []string
	position, attempt            []int32
	step                         []*int32
	timestamp                    []int64
	dueAt, scheduledAt, failedAt []*int64
	subscriber, token, lastError []*string
	callbackType                 []*string
	callbackData, options        [][]byte
}

func (c *importColumns) add(o *job.Occurrence) {
	step, subscriber := partColumns(o.Part)
	c.id, c.lane = append(c.id, uuid(o.ID)), append(c.lane, o.Lane().String())
	var tenant, key *string
	if o.Revision == "" {
		tenant, key = &o.Name.Tenant, &o.Name.Key
	}
	c.revision, c.tenant, c.key = append(c.revision, keptUnder(o.Revision)), append(c.tenant, tenant), append(c.key, key)
	c.position, c.attempt = append(c.position, column4(o.Position)), append(c.attempt, column4(o.Attempt))
	c.step, c.subscriber = append(c.step, step), append(c.subscriber, subscriber)
	c.timestamp, c.dueAt = append(c.timestamp, o.Timestamp.UnixMilli()), append(c.dueAt, millis(o.DueAt))
	c.scheduledAt, c.failedAt = append(c.scheduledAt, millis(o.ScheduledAt)), append(c.failedAt, millis(o.FailedAt))
	c.token, c.lastError = append(c.token, nullable(o.Token)), append(c.lastError, nullable(text(o.LastError)))
	var callbackType *string
	var callbackData, options []byte
	if o.Own != nil {
		callbackType, callbackData, options = &o.Own.Callback.Type, data(o.Own.Callback), o.Own.Options.Encode()
	}
	c.callbackType = append(c.callbackType, callbackType)
	c.callbackData, c.options = append(c.callbackData, callbackData), append(c.options, options)
}
