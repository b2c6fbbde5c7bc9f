package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Columns in the order that scanOccurrence and scanJob read them.
const (
	occurrenceColumns = `o.id, o.tenant, o.key, o.revision, o.position, o.timestamp, o.due_at, o.scheduled_at, o.token,
		o.attempt, o.last_error, o.failed_at, o.callback_type, o.callback_data, o.options`
	jobColumns = `j.tenant, j.key, j.revision, j.created_at, j.updated_at, j.expires_at, j.callback_type,
		EXISTS (SELECT 1 FROM occurrences o WHERE o.revision = j.revision AND o.revision <> '')`
)

// statements are prepared once: parsing SQL costs more than running most of these.
type statements struct {
	jobInsert, jobReplace, jobRevision, jobDelete, jobKeep, jobSweep *sql.Stmt

	revisionCount, revisionDelete, ownCount, ownDelete *sql.Stmt

	occurrenceInsert, claimRead, claimStamp, ack, retry, bury, release *sql.Stmt

	redrive, deadDelete, deadSweep *sql.Stmt

	// Read beside the writer.
	jobRead, jobList, strays, occurrenceList, occurrenceCount, expired, deadOld *sql.Stmt

	// Read for the claim loop.
	nextDue *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, in *Store) error {
	writer, reader := in.writer, in.reader
	for _, p := range []struct {
		db   *sql.DB
		stmt **sql.Stmt
		sql  string
	}{
		{writer, &s.jobInsert, `INSERT INTO jobs (tenant, key, revision, created_at, updated_at, expires_at, callback_type,
			callback_data, options, schedule) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, key) DO NOTHING`},
		{writer, &s.jobReplace, `UPDATE jobs SET revision = ?, updated_at = ?, expires_at = ?, callback_type = ?,
			callback_data = ?, options = ?, schedule = ? WHERE tenant = ? AND key = ?`},
		{writer, &s.jobRevision, `SELECT revision FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobDelete, `DELETE FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobKeep, `UPDATE jobs SET expires_at = ?1 WHERE tenant = ?2 AND key = ?3 AND revision = ?4 AND expires_at < ?1`},

		{writer, &s.revisionCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?), 0)
			FROM occurrences WHERE revision = ? AND revision <> ''`},
		{writer, &s.revisionDelete, `DELETE FROM occurrences WHERE revision = ? AND revision <> ''`},
		{writer, &s.ownCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?), 0)
			FROM occurrences WHERE revision = '' AND tenant = ? AND key = ? AND lane = 0`},
		{writer, &s.ownDelete, `DELETE FROM occurrences WHERE revision = '' AND tenant = ? AND key = ? AND lane = 0`},

		// The same occurrence again is the same row.
		{writer, &s.occurrenceInsert, `INSERT INTO occurrences (id, tenant, key, revision, position, timestamp, lane, due_at, attempt)
			VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0) ON CONFLICT (id) DO NOTHING`},
		{writer, &s.claimRead, `SELECT ` + occurrenceColumns + `, j.callback_type, j.callback_data, j.options
			FROM occurrences o LEFT JOIN jobs j ON o.revision <> '' AND j.tenant = o.tenant AND j.key = o.key
			WHERE o.lane = 0 AND o.due_at <= ? ORDER BY o.due_at, o.id LIMIT ?`},
		{writer, &s.claimStamp, `UPDATE occurrences SET scheduled_at = ?, token = ?, due_at = ?, attempt = attempt + 1
			WHERE lane = 0 AND (due_at, id) <= (?, ?)`},
		{writer, &s.ack, `DELETE FROM occurrences WHERE id = ? AND token = ?`},
		{writer, &s.retry, `UPDATE occurrences SET due_at = ?, last_error = ?, scheduled_at = NULL, token = NULL
			WHERE id = ? AND token = ?`},
		{writer, &s.release, `UPDATE occurrences SET due_at = ?, last_error = coalesce(?, last_error), scheduled_at = NULL,
			token = NULL, attempt = attempt - 1 WHERE id = ? AND token = ?`},
		{writer, &s.bury, `UPDATE occurrences SET lane = -1, revision = '', due_at = NULL, scheduled_at = NULL, token = NULL,
			failed_at = ?, last_error = ?, callback_type = ?, callback_data = ?, options = ? WHERE id = ? AND token = ?`},

		{writer, &s.redrive, `UPDATE occurrences SET lane = 0, due_at = ?, attempt = 0, failed_at = NULL, last_error = NULL
			WHERE id = ? AND tenant = ? AND lane = -1`},
		{writer, &s.deadDelete, `DELETE FROM occurrences WHERE id = ? AND tenant = ? AND lane = -1`},
		{writer, &s.deadSweep, `DELETE FROM occurrences WHERE id = ? AND lane = -1`},
		{writer, &s.jobSweep, `DELETE FROM jobs WHERE tenant = ?1 AND key = ?2 AND revision = ?3 AND expires_at <= ?4
			AND NOT EXISTS (SELECT 1 FROM occurrences WHERE revision = ?3 AND revision <> '')`},

		{reader, &s.jobRead, `SELECT ` + jobColumns + `, j.callback_data, j.options, j.schedule
			FROM jobs j WHERE tenant = ? AND key = ?`},
		{reader, &s.jobList, `SELECT ` + jobColumns + ` FROM jobs j
			WHERE tenant = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?`},
		{reader, &s.strays, `SELECT DISTINCT key FROM occurrences
			WHERE revision = '' AND tenant = ? AND key >= ? AND key < ? AND lane = 0 ORDER BY key LIMIT ?`},
		{reader, &s.occurrenceList, `SELECT ` + strings.Replace(occurrenceColumns, "o.callback_type, o.callback_data, o.options", "NULL, NULL, NULL", 1) + ` FROM occurrences o WHERE id > ?1 AND id IN (
				SELECT id FROM occurrences WHERE revision = ?2 AND revision <> ''
				UNION ALL
				SELECT id FROM occurrences WHERE revision = '' AND tenant = ?3 AND key = ?4 AND lane = 0)
			ORDER BY id LIMIT ?5`},
		{reader, &s.occurrenceCount, `SELECT
			(SELECT count(*) FROM occurrences WHERE revision = ?1 AND revision <> '') +
			(SELECT count(*) FROM occurrences WHERE revision = '' AND tenant = ?2 AND key = ?3 AND lane = 0)`},
		{in.peeker, &s.nextDue, `SELECT due_at FROM occurrences WHERE lane = 0 ORDER BY due_at LIMIT 1`},
		{reader, &s.expired, `SELECT ` + jobColumns + ` FROM jobs j WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`},
		// A dead letter's instant is not after its failure, so the ids before the bound hold all that failed before it.
		{reader, &s.deadOld, `SELECT id FROM occurrences WHERE lane = -1 AND due_at IS NULL AND id < ? AND failed_at < ?
			ORDER BY id LIMIT ?`},
	} {
		var err error
		if *p.stmt, err = p.db.PrepareContext(ctx, p.sql); err != nil {
			return fmt.Errorf("prepare %q: %w", p.sql, err)
		}
	}
	return nil
}
