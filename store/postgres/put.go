package postgres

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs]. Many jobs share a transaction.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	p := putter{store: s, puts: puts, results: make([]store.PutResult, len(puts))}
	for _, round := range rounds(puts) {
		p.put(ctx, round)
	}
	return p.results
}

// rounds divides puts, by their indexes, into transactions. No name occurs twice in one, and the rows and bytes of each
// are bounded. Within one they are ordered by name, which is the order of row locks.
func rounds(puts []store.Put) [][]int {
	var all [][]int
	var rows, size int
	names := make(map[job.Name]bool)
	for i := range puts {
		n := 1 + len(puts[i].Occurrences) + len(puts[i].Carried)
		if len(all) == 0 || names[puts[i].Job.Name] || rows+n > 2*chunk || size >= largestPage {
			all, rows, size = append(all, nil), 0, 0
			clear(names)
		}
		last := len(all) - 1
		all[last] = append(all[last], i)
		names[puts[i].Job.Name] = true
		rows += n
		size += len(puts[i].Job.Callback.Data)
	}
	for _, round := range all {
		sortByName(round, puts)
	}
	return all
}

func sortByName(indexes []int, puts []store.Put) {
	slices.SortFunc(indexes, func(a, b int) int { return compareNames(puts[a].Job.Name, puts[b].Job.Name) })
}

// compareNames orders names as the primary key of jobs does.
func compareNames(a, b job.Name) int {
	if c := strings.Compare(a.Tenant, b.Tenant); c != 0 {
		return c
	}
	return strings.Compare(a.Key, b.Key)
}

// putter makes puts.
type putter struct {
	store   *Store
	puts    []store.Put
	results []store.PutResult
}

// put makes the puts of a round: those of new jobs, the majority, in one transaction, and those of existing jobs in
// another. Each locks rows in the order of names; one transaction for both would not.
func (p *putter) put(ctx context.Context, round []int) {
	// A second pass is needed only if a job was cancelled after its insertion failed, or put after its replacement
	// failed.
	for left := round; len(left) > 0; {
		var create, replace, present []int
		for _, i := range left {
			if creatable(&p.puts[i]) {
				create = append(create, i)
			} else {
				replace = append(replace, i)
			}
		}
		left = nil
		if !p.transact(ctx, create, func(ctx context.Context, tx *conversation) (left []int, err error) {
			left, present, err = p.create(ctx, tx, create)
			return left, err
		}) {
			present = nil
		}
		replace = append(replace, present...)
		sortByName(replace, p.puts)
		if !p.transact(ctx, replace, func(ctx context.Context, tx *conversation) (more []int, err error) {
			more, left, err = p.replace(ctx, tx, replace)
			return more, err
		}) {
			return
		}
	}
}

// creatable reports whether a put may create a job.
func creatable(p *store.Put) bool {
	return p.From == store.Replaced{} && (p.If.Always() || p.If.Absent)
}

// transact runs f in a transaction, and inserts the occurrences that f leaves. F writes jobs, and returns the indexes
// of those whose occurrences are left. If the transaction fails, its error is the result for all indexes.
func (p *putter) transact(
	ctx context.Context, indexes []int, f func(ctx context.Context, tx *conversation) ([]int, error),
) (ok bool) {
	if len(indexes) == 0 {
		return true
	}
	err := p.store.change(ctx, store.ErrNotDone, func(ctx context.Context, tx *conversation) error {
		for _, i := range indexes {
			p.results[i] = store.PutResult{}
		}
		done, err := f(ctx, tx)
		if err != nil {
			return err
		}
		return p.end(ctx, tx, done)
	})
	if err == nil {
		return true
	}
	for _, i := range indexes {
		p.results[i] = store.PutResult{Err: err}
	}
	return false
}

// The statement looks up an occurrence's revision in a hash table of the created jobs, in place of a join.
func (p *putter) create(ctx context.Context, tx *conversation, indexes []int) (left, present []int, err error) {
	inserted := make(map[pgtype.UUID]bool, len(indexes))
	c := p.columns(indexes)
	o, whole := p.occurrences(indexes)
	do := tx.do
	if whole {
		do = tx.end
	}
	err = do(ctx, func(t *transaction) {
		t.rows(`WITH created AS (
				INSERT INTO carillon.jobs (tenant, key, revision, version, callback_type, callback_data, options, schedule,
					created_at, updated_at, expires_at, cursor_at, expand_at, missed, planned, trouble)
				SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::bytea[],
					$7::bytea[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[],
					$13::bigint[], $14::bigint[], $23::bigint[], $24::text[])
				ON CONFLICT (tenant, key) DO NOTHING RETURNING revision
			), inserted AS (
				INSERT INTO carillon.occurrences (revision, id, lane, position, step, subscriber, timestamp, due_at, attempt)
				SELECT *, 0 FROM unnest($15::uuid[], $16::uuid[], $22::text[], $17::integer[], $18::integer[],
						$19::text[], $20::bigint[], $21::bigint[])
					AS o (revision, id, lane, position, step, subscriber, timestamp, due_at)
				WHERE (o.revision IN (SELECT revision FROM created)) IS TRUE
			)
			SELECT revision FROM created`,
			func(rows pgx.Rows) error {
				var revision pgtype.UUID
				err := rows.Scan(&revision)
				inserted[revision] = true
				return err
			},
			c.tenant, c.key, c.revision, c.version, c.callbackType, c.callbackData, c.options, c.schedule,
			c.createdAt, c.updatedAt, c.expiresAt, c.cursor, c.expandAt, c.missed,
			o.revision, o.id, o.position, o.step, o.subscriber, o.timestamp, o.dueAt, o.lane, c.planned, c.trouble)
	})
	for _, i := range indexes {
		switch {
		case !inserted[revisionOf(p.puts[i].Job.Revision)]:
			present = append(present, i)
		case !whole:
			left = append(left, i)
		}
	}
	return left, present, err
}

// replace replaces existing jobs. It deletes their occurrences except the carried-over ones. Held ones are deleted too:
// their settlements will find nothing, so they are never retried. It returns the jobs whose occurrences are left to be
// inserted, and the jobs that no longer exist and could be created.
func (p *putter) replace(ctx context.Context, tx *conversation, indexes []int) (left, gone []int, err error) {
	present, err := p.lock(ctx, tx, indexes)
	if err != nil {
		return nil, nil, err
	}
	var replaced []int
	var revisions []pgtype.UUID
	var nows []int64
	of := make(map[pgtype.UUID]int, len(indexes))
	for _, i := range indexes {
		now, found := present[p.puts[i].Job.Name]
		switch {
		case !found && creatable(&p.puts[i]):
			gone = append(gone, i)
		default:
			if p.results[i].Err = p.puts[i].Judge(now.version, fromMillis(now.cursor)); p.results[i].Err != nil {
				continue
			}
			replaced = append(replaced, i)
			p.results[i].Replaced, p.results[i].Paused = revisionFrom(now.revision), now.paused && !p.puts[i].StartsOver
			of[now.revision] = i
			revisions, nows = append(revisions, now.revision), append(nows, p.puts[i].Now.UnixMilli())
		}
	}
	if len(replaced) == 0 {
		return nil, gone, nil
	}
	c := p.columns(replaced)
	left = replaced
	o, whole := p.occurrences(replaced)
	if whole {
		left = nil
	}
	return left, gone, tx.do(ctx, func(t *transaction) {
		p.carry(t, replaced, of)
		// The order is that of row locks. An occurrence that was buried meanwhile stays.
		t.rows(`WITH found AS MATERIALIZED (
				SELECT o.id, o.revision, r.now FROM unnest($1::uuid[], $2::bigint[]) AS r (revision, now)
				CROSS JOIN LATERAL (SELECT o.id, o.revision FROM carillon.occurrences o
					WHERE o.revision = ANY (ARRAY[r.revision]) OFFSET 0) AS o ORDER BY o.revision, o.id
			), deleted AS (
				DELETE FROM carillon.occurrences o USING found f WHERE o.revision = ANY (ARRAY[f.revision]) AND o.id = f.id
				RETURNING o.revision, o.token IS NOT NULL AND o.due_at > f.now AS held
			)
			SELECT revision, count(*) FROM deleted WHERE held GROUP BY revision`,
			func(rows pgx.Rows) error {
				var revision pgtype.UUID
				var held int
				err := rows.Scan(&revision, &held)
				p.results[of[revision]].InFlight += held
				return err
			}, revisions, nows)
		t.exec(`UPDATE carillon.jobs j SET revision = n.revision, version = n.version, callback_type = n.callback_type,
				callback_data = n.callback_data, options = n.options, schedule = n.schedule, updated_at = n.updated_at,
				expires_at = n.expires_at, cursor_at = n.cursor_at, missed = n.missed,
				planned = CASE WHEN n.named = 0 THEN n.planned ELSE greatest(0, n.planned - n.named
					+ (SELECT count(*) FROM carillon.occurrences o WHERE o.revision = n.revision)) END,
				failed = 0, trouble = n.trouble, expand_token = NULL,
				expand_at = CASE WHEN n.starts_over OR j.paused_at IS NULL THEN n.expand_at END,
				paused_at = CASE WHEN NOT n.starts_over THEN j.paused_at END,
				created_at = CASE WHEN n.starts_over THEN n.created_at ELSE j.created_at END
			FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::bytea[], $7::bytea[],
				$8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
				$15::boolean[], $16::bigint[], $17::bigint[], $18::text[])
				AS n (tenant, key, revision, version, callback_type, callback_data, options, schedule,
					created_at, updated_at, expires_at, cursor_at, expand_at, missed, starts_over, planned, named, trouble)
			WHERE j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key`,
			c.tenant, c.key, c.revision, c.version, c.callbackType, c.callbackData, c.options, c.schedule,
			c.createdAt, c.updatedAt, c.expiresAt, c.cursor, c.expandAt, c.missed, c.startsOver, c.planned, c.named, c.trouble)
		if len(o.id) > 0 {
			o.insert(t)
		}
	})
}

// occurrences returns the occurrences of the puts, if one statement may write them.
func (p *putter) occurrences(indexes []int) (c occurrenceColumns, whole bool) {
	n := 0
	for _, i := range indexes {
		n += len(p.puts[i].Occurrences)
	}
	if n > chunk {
		return c, false
	}
	for _, i := range indexes {
		for o := range once(p.puts[i].Occurrences) {
			c.add(o)
		}
	}
	return c, true
}

// carry adds the statements that transfer the carried-over occurrences to the puts' jobs. Of gives the put that
// replaces a revision.
//
// All occurrences of the replaced revisions are locked first, in the order of rows, because writing the carried-over
// ones before deleting the others does not follow that order.
func (p *putter) carry(t *transaction, indexes []int, of map[pgtype.UUID]int) {
	var all []carryColumns
	var revisions []pgtype.UUID
	for _, i := range indexes {
		if len(p.puts[i].Carried) == 0 {
			continue
		}
		from := revisionOf(p.results[i].Replaced)
		revisions = append(revisions, from)
		for k := range p.puts[i].Carried {
			if len(all) == 0 || len(all[len(all)-1].id) == chunk {
				all = append(all, carryColumns{})
			}
			all[len(all)-1].add(from, &p.puts[i], &p.puts[i].Carried[k])
		}
	}
	if len(all) == 0 {
		return
	}
	slices.SortFunc(revisions, func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) })
	t.exec(`SELECT FROM unnest($1::uuid[]) AS r (revision)
		CROSS JOIN LATERAL (SELECT FROM carillon.occurrences o WHERE o.revision = ANY (ARRAY[r.revision])
			ORDER BY o.revision, o.id FOR UPDATE) AS o`, revisions)
	for i := range all {
		all[i].carry(t, func(from pgtype.UUID, carried, held int) {
			p.results[of[from]].Carried += carried
			p.results[of[from]].InFlight += held
		})
	}
}

// carryColumns are carried-over occurrences, by column.
type carryColumns struct {
	from, id, revision []pgtype.UUID
	position           []int32
	step               []*int32
	subscriber         []*string
	lane               []string
	now                []int64
}

func (c *carryColumns) add(from pgtype.UUID, p *store.Put, o *store.Carried) {
	step, subscriber := partColumns(o.As.Part)
	c.from, c.id = append(c.from, from), append(c.id, uuid(o.ID))
	c.revision, c.position = append(c.revision, revisionOf(p.Job.Revision)), append(c.position, column4(o.As.Position))
	c.step, c.subscriber = append(c.step, step), append(c.subscriber, subscriber)
	c.lane, c.now = append(c.lane, o.As.Lane().String()), append(c.now, p.Now.UnixMilli())
}

// carry adds the statement that transfers them to the new jobs. For each replaced revision it counts those that were
// still pending, and the held ones among them.
func (c *carryColumns) carry(t *transaction, count func(from pgtype.UUID, carried, held int)) {
	t.rows(`WITH carried AS (
			UPDATE carillon.occurrences o SET revision = c.revision, position = c.position, step = c.step,
				subscriber = c.subscriber,
				lane = CASE WHEN o.token IS NOT NULL AND o.due_at > c.now THEN o.lane ELSE c.lane END
			FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::integer[], $6::text[], $7::text[], $8::bigint[])
				AS c (from_revision, id, revision, position, step, subscriber, lane, now)
			WHERE o.revision = ANY (ARRAY[c.from_revision]) AND o.id = c.id
			RETURNING c.from_revision, o.token IS NOT NULL AND o.due_at > c.now AS held
		)
		SELECT from_revision, count(*), count(*) FILTER (WHERE held) FROM carried GROUP BY from_revision`,
		func(rows pgx.Rows) error {
			var from pgtype.UUID
			var carried, held int
			err := rows.Scan(&from, &carried, &held)
			if err == nil {
				count(from, carried, held)
			}
			return err
		}, c.from, c.id, c.revision, c.position, c.step, c.subscriber, c.lane, c.now)
}

// state is the part of a present job that decides a put.
type state struct {
	revision pgtype.UUID
	version  job.Revision
	cursor   *int64
	paused   bool
}

// lock locks the jobs of the puts, in the order of the indexes, and reads their states.
func (p *putter) lock(ctx context.Context, tx *conversation, indexes []int) (map[job.Name]state, error) {
	names := make([]job.Name, len(indexes))
	for k, i := range indexes {
		names[k] = p.puts[i].Job.Name
	}
	tenants, keys := nameColumns(names)
	present := make(map[job.Name]state, len(indexes))
	return present, tx.do(ctx, func(t *transaction) {
		t.rows(`SELECT j.tenant, j.key, j.revision, j.version, j.cursor_at, j.paused_at IS NOT NULL
			FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (tenant, key, place)
			JOIN carillon.jobs j ON j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key
			ORDER BY n.place FOR NO KEY UPDATE OF j`,
			func(rows pgx.Rows) error {
				var name job.Name
				var now state
				err := rows.Scan(&name.Tenant, &name.Key, &now.revision, &now.version, &now.cursor, &now.paused)
				present[name] = now
				return err
			}, tenants, keys)
	})
}

// end inserts the occurrences of the puts.
func (p *putter) end(ctx context.Context, tx *conversation, indexes []int) error {
	var batch occurrenceColumns
	for _, i := range indexes {
		for o := range once(p.puts[i].Occurrences) {
			batch.add(o)
			if len(batch.id) == chunk {
				if err := tx.do(ctx, batch.insert); err != nil {
					return err
				}
				batch = occurrenceColumns{}
			}
		}
	}
	if len(batch.id) == 0 {
		return nil
	}
	return tx.do(ctx, batch.insert)
}

// jobColumns are jobs, by column.
type jobColumns struct {
	tenant, key, version, callbackType      []string
	revision                                []pgtype.UUID
	callbackData, options, schedule         [][]byte
	createdAt, updatedAt, expiresAt, missed []int64
	pausedAt, cursor, expandAt              []*int64
	startsOver                              []bool
	planned, failed, named                  []int64
	trouble                                 []string
}

// columns returns the jobs of the puts.
func (p *putter) columns(indexes []int) (c jobColumns) {
	for _, i := range indexes {
		c.add(&p.puts[i].Job)
		c.startsOver, c.named = append(c.startsOver, p.puts[i].StartsOver), append(c.named, int64(len(p.puts[i].Carried)))
	}
	return c
}

func (c *jobColumns) add(j *job.Job) {
	c.tenant, c.key = append(c.tenant, j.Tenant), append(c.key, j.Key)
	c.revision, c.version = append(c.revision, revisionOf(j.Revision)), append(c.version, string(j.Version))
	c.callbackType, c.callbackData = append(c.callbackType, j.Callback.Type), append(c.callbackData, data(j.Callback))
	c.options, c.schedule = append(c.options, j.Options.Encode()), append(c.schedule, j.Schedule.Encode())
	c.createdAt, c.updatedAt = append(c.createdAt, j.CreatedAt.UnixMilli()), append(c.updatedAt, j.UpdatedAt.UnixMilli())
	c.expiresAt, c.missed = append(c.expiresAt, j.ExpiresAt.UnixMilli()), append(c.missed, int64(j.Missed))
	c.planned, c.failed = append(c.planned, int64(j.Planned)), append(c.failed, int64(j.Failed))
	c.trouble = append(c.trouble, j.Trouble.Encode())
	c.pausedAt = append(c.pausedAt, millis(j.PausedAt))
	c.cursor, c.expandAt = append(c.cursor, millis(j.Cursor)), append(c.expandAt, millis(j.ExpandAt))
}

// data returns a callback's data, which are never NULL.
func data(c job.Callback) []byte {
	if c.Data == nil {
		return []byte{}
	}
	return c.Data
}

// nameColumns returns names by column.
func nameColumns(names []job.Name) (tenants, keys []string) {
	for _, n := range names {
		tenants, keys = append(tenants, n.Tenant), append(keys, n.Key)
	}
	return tenants, keys
}

// occurrenceColumns are fresh occurrences of jobs, by column.
type occurrenceColumns struct {
	revision, id     []pgtype.UUID
	position         []int32
	step             []*int32
	timestamp, dueAt []int64
	subscriber       []*string
	lane             []string
}

// once yields each of a job's occurrences once, even if it is listed twice.
func once(occurrences []job.Occurrence) iter.Seq[*job.Occurrence] {
	return func(yield func(*job.Occurrence) bool) {
		seen := make(map[job.ID]bool)
		for i := range occurrences {
			o := &occurrences[i]
			if len(occurrences) > 1 { // most jobs have one
				if seen[o.ID] {
					continue
				}
				seen[o.ID] = true
			}
			if !yield(o) {
				return
			}
		}
	}
}

func (c *occurrenceColumns) add(o *job.Occurrence) {
	c.revision, c.id = append(c.revision, revisionOf(o.Revision)), append(c.id, uuid(o.ID))
	c.timestamp, c.dueAt = append(c.timestamp, o.Timestamp.UnixMilli()), append(c.dueAt, o.DueAt.UnixMilli())
	c.lane = append(c.lane, o.Lane().String())
	step, subscriber := partColumns(o.Part)
	c.position, c.step = append(c.position, column4(o.Position)), append(c.step, step)
	c.subscriber = append(c.subscriber, subscriber)
}

// insert adds the statement that inserts the occurrences. It needs no check for existing ones, which would cost an
// index lookup each: either the revision is fresh, or the occurrences lie behind the cursor, which moves in the same
// transaction.
func (c *occurrenceColumns) insert(t *transaction) {
	t.exec(`INSERT INTO carillon.occurrences (revision, id, lane, position, step, subscriber, timestamp, due_at, attempt)
		SELECT *, 0 FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::integer[], $5::integer[],
			$6::text[], $7::bigint[], $8::bigint[])`,
		c.revision, c.id, c.lane, c.position, c.step, c.subscriber, c.timestamp, c.dueAt)
}

// column4 converts a number to a column of four bytes. All numbers of a job are bounded far below that.
func column4(n int) int32 { return int32(n) } //nolint:gosec // see above

// partColumns returns an occurrence's part as it is stored.
func partColumns(p *job.Part) (step *int32, subscriber *string) {
	if p == nil {
		return nil, nil
	}
	index := column4(p.Step)
	return &index, nullable(p.Subscriber)
}

// uuid returns an id as it is stored; both are 16 bytes, in the same order.
func uuid(id job.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }
