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
		o.attempt, o.step, o.subscriber, o.last_error, o.failed_at, o.callback_type, o.callback_data, o.options`
	jobColumns = `j.tenant, j.key, j.revision, j.version, j.created_at, j.updated_at, j.expires_at, j.paused_at, j.cursor,
		j.expand_at, j.missed, j.callback_type, j.expand_at IS NOT NULL OR j.paused_at IS NOT NULL AND j.cursor IS NOT NULL
		OR EXISTS (SELECT 1 FROM occurrences o WHERE o.revision = j.revision AND o.revision <> '')`
)

// statements are prepared once: parsing SQL costs more than running most of these.
type statements struct {
	jobInsert, jobReplace, jobStamps, jobDelete, jobKeep, jobSweep *sql.Stmt

	jobAmend, jobPause, jobResume, jobMiss, delayedRead, delayedDue *sql.Stmt

	expandRead, expandStamp, advance *sql.Stmt

	revisionCount, revisionDelete, ownCount, ownDelete *sql.Stmt

	occurrenceInsert, ownInsert, claimRead, claimStamp, pausedRead, putBack, ack, retry, bury, release *sql.Stmt

	redrive, deadDelete, deadSweep *sql.Stmt

	// Read beside the writer.
	jobRead, jobList, strays, occurrenceList, occurrenceCount, expired, deadOld, backlog *sql.Stmt

	// Read for the loops.
	nextDue, expandDue *sql.Stmt

	replicaBeat, replicaGone, replicasForget, replicasCount *sql.Stmt

	jobExport, occurrenceExport, occurrenceImport *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, in *Store) error {
	writer, reader := in.writer, in.reader
	for _, p := range []struct {
		db   *sql.DB
		stmt **sql.Stmt
		sql  string
	}{
		{writer, &s.jobInsert, `INSERT INTO jobs (tenant, key, revision, version, created_at, updated_at, expires_at, paused_at,
			cursor, expand_at, missed, callback_type, callback_data, options, schedule)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, key) DO NOTHING`},
		// One that is paused stays so, unless ?1: it is put anew.
		{writer, &s.jobReplace, `UPDATE jobs SET revision = ?4, version = ?5, created_at = iif(?1, ?6, created_at), updated_at = ?7,
			expires_at = ?8, paused_at = iif(?1, NULL, paused_at), cursor = ?9, expand_at = iif(?1 OR paused_at IS NULL, ?10, NULL),
			expand_token = NULL, missed = ?11, callback_type = ?12, callback_data = ?13, options = ?14, schedule = ?15
			WHERE tenant = ?2 AND key = ?3 RETURNING paused_at IS NOT NULL`},
		{writer, &s.jobStamps, `SELECT revision, version FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobDelete, `DELETE FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobKeep, `UPDATE jobs SET expires_at = ?1 WHERE tenant = ?2 AND key = ?3 AND revision = ?4 AND expires_at < ?1`},
		{writer, &s.jobAmend, `UPDATE jobs SET version = ?, updated_at = ?, callback_type = ?, callback_data = ?, options = ?
			WHERE tenant = ? AND key = ?`},
		// Without expand_at it is not found for expansion, and without the token an expansion under way comes to nothing.
		{writer, &s.jobPause, `UPDATE jobs SET paused_at = ?1, version = ?2, updated_at = ?1, expand_at = NULL, expand_token = NULL
			WHERE tenant = ?3 AND key = ?4 AND paused_at IS NULL`},
		{writer, &s.jobResume, `UPDATE jobs SET paused_at = NULL, version = ?2, updated_at = ?1, expand_at = iif(cursor IS NULL, NULL, ?1)
			WHERE tenant = ?3 AND key = ?4 AND paused_at IS NOT NULL`},
		{writer, &s.delayedRead, `SELECT count(*), max(id) FROM (SELECT id FROM occurrences
			WHERE revision = ?2 AND revision <> '' AND id > ?3 AND token IS NULL AND due_at > max(timestamp, ?1) ORDER BY id LIMIT ?4)`},
		{writer, &s.delayedDue, `UPDATE occurrences SET due_at = max(timestamp, ?1)
			WHERE revision = ?2 AND revision <> '' AND id > ?3 AND id <= ?4 AND token IS NULL AND due_at > max(timestamp, ?1)`},
		{writer, &s.jobMiss, `UPDATE jobs SET missed = missed + 1 WHERE tenant = ? AND key = ? AND revision = ?`},

		{writer, &s.expandRead, `SELECT ` + jobColumns + `, j.rowid, j.options, j.schedule
			FROM jobs j WHERE j.expand_at <= ? ORDER BY j.expand_at LIMIT ?`},
		{writer, &s.expandStamp, `UPDATE jobs SET expand_at = ?, expand_token = ? WHERE rowid = ?`},
		{writer, &s.advance, `UPDATE jobs SET cursor = ?, expand_at = ?, expand_token = NULL, missed = missed + ?,
			expires_at = coalesce(?, expires_at) WHERE tenant = ? AND key = ? AND revision = ? AND cursor IS ? AND expand_token = ?`},

		{writer, &s.revisionCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?), 0)
			FROM occurrences WHERE revision = ? AND revision <> ''`},
		{writer, &s.revisionDelete, `DELETE FROM occurrences WHERE revision = ? AND revision <> ''`},
		{writer, &s.ownCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?), 0)
			FROM occurrences WHERE revision = '' AND tenant = ? AND key = ? AND lane = 0`},
		{writer, &s.ownDelete, `DELETE FROM occurrences WHERE revision = '' AND tenant = ? AND key = ? AND lane = 0`},

		// The same occurrence again is the same row.
		{writer, &s.occurrenceInsert, `INSERT INTO occurrences (id, tenant, key, revision, position, timestamp, lane, due_at, attempt,
			step, subscriber) VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?) ON CONFLICT (id) DO NOTHING`},
		{writer, &s.ownInsert, `INSERT INTO occurrences (id, tenant, key, revision, position, timestamp, lane, due_at, attempt,
			step, subscriber, callback_type, callback_data, options) VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO NOTHING`},
		// Of a paused job nothing is read that may be large: its occurrences are put back.
		{writer, &s.claimRead, `SELECT ` + occurrenceColumns + `, j.paused_at IS NOT NULL, j.callback_type,
			iif(j.paused_at IS NULL, j.callback_data, NULL), iif(j.paused_at IS NULL, j.options, NULL)
			FROM occurrences o LEFT JOIN jobs j ON o.revision <> '' AND j.tenant = o.tenant AND j.key = o.key
			WHERE o.lane = 0 AND o.due_at <= ? ORDER BY o.due_at, o.id LIMIT ?`},
		{writer, &s.claimStamp, `UPDATE occurrences SET scheduled_at = ?, token = ?, due_at = ?, attempt = attempt + 1
			WHERE lane = 0 AND (due_at, id) <= (?, ?)`},
		{writer, &s.pausedRead, `SELECT o.id, o.timestamp, j.paused_at FROM
			(SELECT id, tenant, key, revision, timestamp FROM occurrences WHERE lane = 0 AND due_at <= ? ORDER BY due_at, id LIMIT ?) o
			JOIN jobs j ON o.revision <> '' AND j.tenant = o.tenant AND j.key = o.key AND j.paused_at IS NOT NULL`},
		{writer, &s.putBack, `UPDATE occurrences SET due_at = ?, scheduled_at = NULL, token = NULL WHERE id = ?`},
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
			AND expand_at IS NULL AND (paused_at IS NULL OR cursor IS NULL)
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
		// All of it from the claim index, and of one moment.
		{reader, &s.backlog, `SELECT
			(SELECT count(*) FROM occurrences WHERE lane = 0),
			(SELECT count(*) FROM occurrences WHERE lane = 0 AND due_at <= ?1),
			(SELECT min(due_at) FROM occurrences WHERE lane = 0 AND due_at <= ?1),
			(SELECT count(*) FROM occurrences WHERE lane = -1)`},
		{in.peeker, &s.nextDue, `SELECT due_at FROM occurrences WHERE lane = 0 ORDER BY due_at LIMIT 1`},
		{in.peeker, &s.expandDue, `SELECT EXISTS (SELECT 1 FROM jobs WHERE expand_at <= ?)`},
		{reader, &s.expired, `SELECT ` + jobColumns + ` FROM jobs j WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`},
		// A dead letter's instant is not after its failure, so the ids before the bound hold all that failed before it.
		{reader, &s.deadOld, `SELECT id FROM occurrences WHERE lane = -1 AND due_at IS NULL AND id < ? AND failed_at < ?
			ORDER BY id LIMIT ?`},

		{writer, &s.replicaBeat, `INSERT INTO replicas (id, until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET until = excluded.until`},
		{writer, &s.replicaGone, `DELETE FROM replicas WHERE id = ?`},
		{writer, &s.replicasForget, `DELETE FROM replicas WHERE until <= ?`},
		{writer, &s.replicasCount, `SELECT count(*) FROM replicas WHERE until > ?`},
		{reader, &s.jobExport, `SELECT ` + jobColumns + `, j.callback_data, j.options, j.schedule
			FROM jobs j WHERE (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?`},
		{reader, &s.occurrenceExport, `SELECT ` + occurrenceColumns + ` FROM occurrences o WHERE id > ? ORDER BY id LIMIT ?`},
		// One whose job is gone, or is another, or has not come to it yet, would be claimed all the same.
		{writer, &s.occurrenceImport, `INSERT INTO occurrences (id, tenant, key, revision, position, timestamp, lane, due_at,
			scheduled_at, token, attempt, step, subscriber, last_error, failed_at, callback_type, callback_data, options)
			SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
			WHERE ?4 = '' OR EXISTS (SELECT 1 FROM jobs WHERE tenant = ?2 AND key = ?3 AND revision = ?4
				AND (cursor IS NULL OR cursor >= ?6))
			ON CONFLICT (id) DO NOTHING`},
	} {
		var err error
		if *p.stmt, err = p.db.PrepareContext(ctx, p.sql); err != nil {
			return fmt.Errorf("prepare %q: %w", p.sql, err)
		}
	}
	return nil
}
