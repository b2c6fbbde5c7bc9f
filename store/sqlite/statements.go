package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Columns in the order that scanOccurrence and scanJob read them.
const (
	occurrenceColumns = `o.id, coalesce(j.tenant, o.tenant), coalesce(j.key, o.key), o.priority, coalesce(j.revision, ''),
		o.position, o.timestamp, o.due_at, o.scheduled_at, o.token, o.attempt, o.step, o.subscriber,
		o.last_error, o.failed_at,
		` + ownColumns
	// The target that a standalone occurrence has itself.
	ownColumns   = `o.callback_type, o.callback_data, o.options`
	claimColumns = `o.id, o.priority, o.position, o.timestamp, o.due_at, o.scheduled_at, o.attempt, o.step, o.subscriber,
		o.last_error, coalesce(j.tenant, o.tenant), coalesce(j.key, o.key), j.revision, j.paused_at IS NOT NULL,
		coalesce(o.callback_type, j.callback_type),
		iif(j.paused_at IS NULL, coalesce(o.callback_data, j.callback_data), NULL),
		iif(j.paused_at IS NULL, coalesce(o.options, j.options), NULL)`
	occurrenceTables = `occurrences o LEFT JOIN jobs j ON j.rowid = o.job`
	jobColumns       = `j.tenant, j.key, j.revision, j.version, j.created_at, j.updated_at, j.expires_at, j.paused_at,
		j.cursor, j.expand_at, j.missed, j.planned, j.failed, j.trouble, j.callback_type,
		coalesce((SELECT o.id FROM occurrences o WHERE o.id = j.sole AND o.job = j.rowid),
		(SELECT o.id FROM occurrences o WHERE o.job = j.rowid AND o.listed = 1 ORDER BY o.id LIMIT 1))`
)

// ofJob selects the pending occurrences of the job with the row ?1.
const ofJob = `job = ?1 AND id IN (SELECT id FROM occurrences WHERE job = ?1 AND listed = 1
	UNION ALL SELECT sole FROM jobs WHERE rowid = ?1)`

// statements are prepared once: parsing SQL costs more than running most of these.
type statements struct {
	jobInsert, jobReplace, jobStamps, jobDelete, jobKeep, jobSweep *sql.Stmt

	jobAmend, jobPause, jobResume, jobTrouble, delayedRead, delayedDue *sql.Stmt

	expandRead, expandStamp, advance *sql.Stmt

	jobCount, jobEmpty, carry, carried, ownCount, ownDelete *sql.Stmt

	occurrenceInsert, occurrencesInsert, ownInsert *sql.Stmt

	claimRead, laneNext, claimStamp, pausedRead, putBack *sql.Stmt

	ack, acks, miss, retry, release, heldJob, bury *sql.Stmt

	redrive, deadDelete, deadSweep *sql.Stmt

	// Reads concurrent with the writer.
	jobList, jobListWhole, standaloneList, occurrenceList, occurrenceCount, expired, deadOld, countAll *sql.Stmt

	// Reads for the loops.
	dueLanes, expandDue *sql.Stmt

	laneCount, laneSample *sql.Stmt

	recordRead, recordWrite, recordDelete, recordSweep, recordList, recordNamed, recordsOld *sql.Stmt

	jobExport, occurrenceExport, occurrenceImport *sql.Stmt
}

func (s *statements) prepare(ctx context.Context, in *Store) error {
	writer, reader := in.writer, in.reader
	withoutOwn := strings.Replace(occurrenceColumns, ownColumns, "NULL, NULL, NULL", 1)
	for _, p := range []struct {
		db   *sql.DB
		stmt **sql.Stmt
		sql  string
	}{
		{writer, &s.jobInsert, `INSERT INTO jobs (tenant, key, revision, version, created_at, updated_at, expires_at,
			paused_at, cursor, expand_at, missed, callback_type, callback_data, options, sole, schedule,
			planned, failed, trouble)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, key) DO NOTHING`},
		// A paused job stays paused, unless ?1 (StartsOver) is set.
		{writer, &s.jobReplace, `UPDATE jobs SET revision = ?4, version = ?5,
			created_at = iif(?1, ?6, created_at), updated_at = ?7, expires_at = ?8,
			paused_at = iif(?1, NULL, paused_at), cursor = ?9,
			expand_at = iif(?1 OR paused_at IS NULL, ?10, NULL), expand_token = NULL, missed = ?11,
			callback_type = ?12, callback_data = ?13, options = ?14, sole = ?15, schedule = ?16,
			planned = ?17, failed = ?18, trouble = ?19
			WHERE tenant = ?2 AND key = ?3 RETURNING paused_at IS NOT NULL`},
		{writer, &s.jobStamps, `SELECT rowid, revision, version, cursor FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobDelete, `DELETE FROM jobs WHERE tenant = ? AND key = ?`},
		{writer, &s.jobKeep, `UPDATE jobs SET expires_at = ?1 WHERE rowid = ?2 AND expires_at < ?1`},
		{writer, &s.jobAmend, `UPDATE jobs SET version = ?, updated_at = ?, callback_type = ?, callback_data = ?, options = ?
			WHERE tenant = ? AND key = ?`},
		// Without expand_at no claim finds the job for expansion, and without the token an expansion under way has no
		// effect.
		{writer, &s.jobPause, `UPDATE jobs SET paused_at = ?1, version = ?2, updated_at = ?1,
			expand_at = NULL, expand_token = NULL
			WHERE tenant = ?3 AND key = ?4 AND paused_at IS NULL`},
		{writer, &s.jobResume, `UPDATE jobs SET paused_at = NULL, version = ?2, updated_at = ?1,
			expand_at = iif(cursor IS NULL, NULL, ?1)
			WHERE tenant = ?3 AND key = ?4 AND paused_at IS NOT NULL`},
		{writer, &s.delayedRead, `SELECT count(*), max(id) FROM (
			SELECT id FROM (SELECT id FROM occurrences WHERE job = ?2 AND listed = 1 AND id > ?3
				AND token IS NULL AND due_at > max(timestamp, ?1) ORDER BY id LIMIT ?4)
			UNION ALL SELECT id FROM occurrences WHERE id = (SELECT sole FROM jobs WHERE rowid = ?2) AND job = ?2 AND id > ?3
				AND token IS NULL AND due_at > max(timestamp, ?1))`},
		{writer, &s.delayedDue, `UPDATE occurrences SET due_at = max(timestamp, ?1)
			WHERE id IN (SELECT id FROM occurrences WHERE job = ?2 AND listed = 1 AND id > ?3 AND id <= ?4
				UNION ALL SELECT sole FROM jobs WHERE rowid = ?2)
			AND job = ?2 AND id > ?3 AND id <= ?4 AND token IS NULL AND due_at > max(timestamp, ?1)`},
		{writer, &s.jobTrouble, `UPDATE jobs SET missed = missed + ?2, failed = failed + ?3,
			trouble = max(trouble, ?4) WHERE rowid = ?1`},

		{writer, &s.expandRead, `SELECT ` + jobColumns + `, j.rowid, j.options, j.schedule
			FROM jobs j WHERE j.expand_at <= ? ORDER BY j.expand_at LIMIT ?`},
		{writer, &s.expandStamp, `UPDATE jobs SET expand_at = ?, expand_token = ? WHERE rowid = ?`},
		{writer, &s.advance, `UPDATE jobs SET cursor = ?, expand_at = ?, expand_token = NULL, missed = missed + ?,
			planned = iif(planned > 0, planned + ?, 0), trouble = max(trouble, ?),
			expires_at = coalesce(?, expires_at)
			WHERE tenant = ? AND key = ? AND revision = ? AND cursor IS ? AND expand_token = ?
			RETURNING rowid`},

		{writer, &s.jobCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?2), 0)
			FROM occurrences WHERE ` + ofJob},
		{writer, &s.jobEmpty, `DELETE FROM occurrences WHERE ` + ofJob},
		// Carried-over occurrences have the negative of the row number while the others are deleted.
		{writer, &s.carry, `UPDATE occurrences SET job = -?1, listed = 1, position = ?3, step = ?4, subscriber = ?5,
			priority = iif(token IS NOT NULL AND due_at > ?8, priority, ?6),
			lane = iif(token IS NOT NULL AND due_at > ?8, lane, ?7)
			WHERE id = ?2 AND job = ?1`},
		{writer, &s.carried, `UPDATE occurrences SET job = ?1 WHERE job = -?1 AND listed = 1`},
		{writer, &s.ownCount, `SELECT count(*), coalesce(sum(token IS NOT NULL AND due_at > ?), 0)
			FROM occurrences WHERE job IS NULL AND tenant = ? AND key = ? AND lane > ''`},
		{writer, &s.ownDelete, `DELETE FROM occurrences WHERE job IS NULL AND tenant = ? AND key = ? AND lane > ''`},

		// Inserting an existing occurrence again changes nothing.
		{writer, &s.occurrenceInsert, insertOccurrences(1)},
		{writer, &s.occurrencesInsert, insertOccurrences(atOnce)},
		{writer, &s.ownInsert, `INSERT INTO occurrences (tenant, key, listed, id, priority, lane, position,
			timestamp, due_at, attempt, step, subscriber, callback_type, callback_data, options)
			VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO NOTHING`},
		// Large columns are not read for a paused job, because its occurrences are put back.
		{writer, &s.claimRead, `SELECT ` + claimColumns + ` FROM ` + occurrenceTables + `
			WHERE o.lane = ? AND o.due_at > ? AND o.due_at <= ? ORDER BY o.due_at, o.id LIMIT ?`},
		{writer, &s.laneNext, `SELECT min(due_at) FROM occurrences WHERE lane = ? AND due_at > ?`},
		{writer, &s.claimStamp, `UPDATE occurrences SET scheduled_at = ?, token = ?, due_at = ?, attempt = attempt + 1
			WHERE lane = ? AND due_at > ? AND (due_at, id) <= (?, ?)`},
		{writer, &s.pausedRead, `SELECT o.id, o.timestamp, j.paused_at FROM
			(SELECT id, job, timestamp FROM occurrences WHERE lane = ? AND due_at > ? AND due_at <= ?
				ORDER BY due_at, id LIMIT ?) o
			JOIN jobs j ON j.rowid = o.job AND j.paused_at IS NOT NULL`},
		{writer, &s.putBack, `UPDATE occurrences SET due_at = ?, scheduled_at = NULL, token = NULL WHERE id = ?`},
		{writer, &s.ack, `DELETE FROM occurrences WHERE token = ? AND id = ?`},
		{writer, &s.acks, `DELETE FROM occurrences WHERE token = ? AND id IN (?` + strings.Repeat(", ?", atOnce-1) + `)`},
		// Each of these returns the occurrence's present job, whose revision may differ from that of the claim.
		{writer, &s.miss, `DELETE FROM occurrences WHERE token = ? AND id = ? RETURNING job`},
		{writer, &s.retry, `UPDATE occurrences SET due_at = ?, last_error = ?, scheduled_at = NULL, token = NULL
			WHERE id = ? AND token = ? RETURNING job`},
		{writer, &s.release, `UPDATE occurrences SET due_at = ?, last_error = coalesce(?, last_error), scheduled_at = NULL,
			token = NULL, attempt = attempt - 1 WHERE id = ? AND token = ? RETURNING job`},
		{writer, &s.heldJob, `SELECT job FROM occurrences WHERE id = ? AND token = ?`},
		{writer, &s.bury, `UPDATE occurrences SET lane = '', due_at = NULL, scheduled_at = NULL, token = NULL,
			job = NULL, listed = 0,
			tenant = coalesce(tenant, (SELECT tenant FROM jobs WHERE rowid = job)),
			key = coalesce(key, (SELECT key FROM jobs WHERE rowid = job)),
			failed_at = ?, last_error = ?, callback_type = ?, callback_data = ?, options = ?
			WHERE id = ? AND token = ?`},

		{writer, &s.redrive, `UPDATE occurrences SET lane = tenant || coalesce('!' || priority, ''),
			due_at = ?, attempt = 0, failed_at = NULL, last_error = NULL
			WHERE id = ? AND tenant = ? AND lane = ''`},
		{writer, &s.deadDelete, `DELETE FROM occurrences WHERE id = ? AND tenant = ? AND lane = ''`},
		{writer, &s.deadSweep, `DELETE FROM occurrences WHERE id = ? AND lane = ''`},
		{writer, &s.jobSweep, `DELETE FROM jobs WHERE tenant = ?1 AND key = ?2 AND revision = ?3 AND expires_at <= ?4
			AND expand_at IS NULL AND (paused_at IS NULL OR cursor IS NULL)
			AND NOT EXISTS (SELECT 1 FROM occurrences o WHERE o.job = jobs.rowid AND o.listed = 1)
			AND NOT EXISTS (SELECT 1 FROM occurrences o WHERE o.id = jobs.sole AND o.job = jobs.rowid)`},

		{reader, &s.jobListWhole, `SELECT ` + jobColumns + `, j.callback_data, j.options, j.schedule FROM jobs j
			WHERE tenant = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?`},
		{reader, &s.jobList, `SELECT ` + jobColumns + ` FROM jobs j
			WHERE tenant = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?`},
		{reader, &s.standaloneList, `SELECT DISTINCT key FROM occurrences
			WHERE job IS NULL AND tenant = ? AND key >= ? AND key < ? AND lane > '' ORDER BY key LIMIT ?`},
		{reader, &s.occurrenceList, `SELECT ` + withoutOwn + ` FROM ` + occurrenceTables + `
			WHERE o.lane > '' AND o.id > ?1 AND o.id IN (
				SELECT id FROM occurrences WHERE listed = 1
					AND job = (SELECT rowid FROM jobs WHERE tenant = ?2 AND key = ?3 AND revision = ?4)
				UNION ALL SELECT sole FROM jobs WHERE tenant = ?2 AND key = ?3 AND revision = ?4
				UNION ALL SELECT id FROM occurrences WHERE job IS NULL AND tenant = ?2 AND key = ?3 AND lane > '')
			ORDER BY o.id LIMIT ?5`},
		{reader, &s.occurrenceCount, `SELECT
			(SELECT count(*) FROM occurrences WHERE listed = 1
				AND job = (SELECT rowid FROM jobs WHERE tenant = ?1 AND key = ?2 AND revision = ?3)) +
			(SELECT count(*) FROM jobs j JOIN occurrences o ON o.id = j.sole AND o.job = j.rowid AND o.listed = 0
				WHERE j.tenant = ?1 AND j.key = ?2 AND j.revision = ?3) +
			(SELECT count(*) FROM occurrences WHERE job IS NULL AND tenant = ?1 AND key = ?2 AND lane > '')`},
		// All counts come from the indexes by lane and by due time, and belong to one moment.
		// Counting all rows reads only the numbers of rows on pages.
		{reader, &s.countAll, `SELECT
			(SELECT count(*) FROM occurrences) - dead,
			(SELECT count(*) FROM occurrences INDEXED BY occurrences_due WHERE due_at <= ?1),
			dead
			FROM (SELECT count(*) AS dead FROM occurrences WHERE lane = '')`},
		{in.peeker, &s.dueLanes, `SELECT lane, min(due_at), max(due_at), count(*) FROM (
				SELECT due_at, lane FROM occurrences INDEXED BY occurrences_due
				WHERE due_at >= ?1 AND (due_at, lane) > (?1, ?2) AND due_at <= ?3 ORDER BY due_at, lane LIMIT ?4)
			GROUP BY lane`},
		// Counting a range of an index is several times as fast as counting the rows of a query with a limit. So this
		// looks for the entry at the limit first.
		{reader, &s.laneCount, `SELECT
				iif(last IS NULL, (SELECT count(*) FROM occurrences WHERE lane = ?2), ?3),
				iif(last <= ?1, ?3, (SELECT count(*) FROM occurrences WHERE lane = ?2 AND due_at <= ?1))
			FROM (SELECT (SELECT due_at FROM occurrences WHERE lane = ?2 ORDER BY due_at LIMIT 1 OFFSET ?3 - 1) AS last)`},
		{reader, &s.laneSample, `SELECT o.due_at, coalesce(o.callback_type, j.callback_type),
				coalesce(o.callback_data, j.callback_data)
			FROM ` + occurrenceTables + ` WHERE o.lane = ? AND o.due_at >= ? ORDER BY o.due_at, o.id LIMIT ?`},
		{writer, &s.recordRead, `SELECT version FROM records
			WHERE collection = ? AND key = ? AND (expires_at IS NULL OR expires_at > ?)`},
		{writer, &s.recordWrite, `INSERT INTO records (collection, key, version, expires_at, body)
			VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (collection, key) DO UPDATE
			SET version = excluded.version, expires_at = excluded.expires_at, body = excluded.body`},
		{writer, &s.recordDelete, `DELETE FROM records WHERE collection = ? AND key = ?`},
		{writer, &s.recordSweep, `DELETE FROM records WHERE rowid = ? AND expires_at <= ?`},
		{in.peeker, &s.recordList, `SELECT key, version, expires_at, body FROM records WHERE collection = ?1
			AND key >= ?4 AND key < ?5 AND (expires_at IS NULL OR expires_at > ?2) ORDER BY key LIMIT ?3`},
		{in.peeker, &s.recordNamed, `SELECT key, version, expires_at, body FROM records WHERE collection = ?1
			AND key IN (SELECT value FROM json_each(?4)) AND (expires_at IS NULL OR expires_at > ?2) ORDER BY key LIMIT ?3`},
		{reader, &s.recordsOld, `SELECT rowid FROM records WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`},
		{in.peeker, &s.expandDue, `SELECT EXISTS (SELECT 1 FROM jobs WHERE expand_at <= ?)`},
		{reader, &s.expired, `SELECT ` + jobColumns + ` FROM jobs j WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`},
		// A dead letter's instant is not after its failure, so the ids before the bound include all that failed before
		// it.
		{reader, &s.deadOld, `SELECT id FROM occurrences WHERE lane = '' AND due_at IS NULL AND id < ? AND failed_at < ?
			ORDER BY id LIMIT ?`},

		{reader, &s.jobExport, `SELECT ` + jobColumns + `, j.callback_data, j.options, j.schedule
			FROM jobs j WHERE (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?`},
		{reader, &s.occurrenceExport, `SELECT ` + occurrenceColumns + ` FROM ` + occurrenceTables + `
			WHERE o.id > ? ORDER BY o.id LIMIT ?`},
		// An occurrence whose job does not exist, was replaced, or has not reached it yet would be claimed regardless.
		{writer, &s.occurrenceImport, `INSERT INTO occurrences (id, job, listed, tenant, key, position, timestamp,
			priority, lane, due_at, scheduled_at, token, attempt, step, subscriber, last_error, failed_at,
			callback_type, callback_data, options)
			SELECT ?1, j.rowid, ?4 <> '', iif(?4 = '', ?2, NULL), iif(?4 = '', ?3, NULL),
				?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19
			FROM (SELECT 1) LEFT JOIN jobs j
				ON j.tenant = ?2 AND j.key = ?3 AND j.revision = ?4 AND (j.cursor IS NULL OR j.cursor >= ?6)
			WHERE ?4 = '' OR j.rowid IS NOT NULL
			ON CONFLICT (id) DO NOTHING`},
	} {
		var err error
		if *p.stmt, err = p.db.PrepareContext(ctx, p.sql); err != nil {
			return fmt.Errorf("prepare %q: %w", p.sql, err)
		}
	}
	return nil
}

// occurrenceParameters is the number of parameters of insertOccurrences for each occurrence.
const occurrenceParameters = 10

// insertOccurrences returns the statement that inserts n occurrences of jobs.
func insertOccurrences(n int) string {
	const values = "(?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)"
	return `INSERT INTO occurrences (job, listed, id, priority, lane, position, timestamp, due_at, attempt,
		step, subscriber) VALUES ` + strings.Repeat(values+", ", n-1) + values + ` ON CONFLICT (id) DO NOTHING`
}
