package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	if !storable(a.Name.Tenant, a.Name.Key) {
		return store.ErrNotFound
	}
	var amended, exists bool
	err := s.changeOnce(ctx, func(t *transaction) {
		t.row(`WITH amended AS (
				UPDATE carillon.jobs SET version = $4, updated_at = $5, callback_type = $6, callback_data = $7, options = $8
				WHERE tenant = $1 AND key = $2 AND version = $3 RETURNING 1
			)
			SELECT EXISTS (SELECT FROM amended), EXISTS (SELECT FROM carillon.jobs WHERE tenant = $1 AND key = $2)`,
			func(row pgx.Row) error { return row.Scan(&amended, &exists) },
			a.Name.Tenant, a.Name.Key, string(a.Of), string(a.Version), a.Now.UnixMilli(),
			a.Callback.Type, data(a.Callback), a.Options.Encode())
	})
	switch {
	case err != nil || amended:
		return err
	case exists:
		return store.ErrPrecondition
	default:
		return store.ErrNotFound
	}
}

// Pause implements [store.Jobs]. It writes the job only, however many occurrences the job has: claims put those back.
// Without expand_at no claim finds the job for expansion, and without the token an expansion under way has no effect.
//
// The statement that pauses the job also reports whether it exists: between two statements, another job could take its
// place.
func (s *Store) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	if !storable(name.Tenant, name.Key) {
		return store.ErrNotFound
	}
	var found int
	err := s.changeOnce(ctx, func(t *transaction) {
		t.affected(&found, `WITH present AS MATERIALIZED (
				SELECT tenant, key, paused_at FROM carillon.jobs WHERE tenant = $1 AND key = $2 FOR NO KEY UPDATE
			), paused AS (
				UPDATE carillon.jobs j SET paused_at = $4, version = $3, updated_at = $4, expand_at = NULL, expand_token = NULL
				FROM present p WHERE j.tenant = ANY (ARRAY[p.tenant]) AND j.key = p.key AND p.paused_at IS NULL
			)
			SELECT FROM present`, name.Tenant, name.Key, string(version), now.UnixMilli())
	})
	return foundOr(found, err)
}

// Resume implements [store.Jobs]. A claim that puts occurrences back has locked the job, so the first statement waits
// for that claim, and the last sees its changes. The last examines all occurrences of the job, since the claim may have
// been early, or made by a clock that is ahead.
func (s *Store) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	if !storable(name.Tenant, name.Key) {
		return store.ErrNotFound
	}
	var found int
	err := s.changeOnce(ctx, func(t *transaction) {
		t.exec(`UPDATE carillon.jobs SET paused_at = NULL, version = $3, updated_at = $4,
				expand_at = CASE WHEN cursor_at IS NOT NULL THEN $4::bigint END
			WHERE tenant = $1 AND key = $2 AND paused_at IS NOT NULL`, name.Tenant, name.Key, string(version), now.UnixMilli())
		t.affected(&found, `SELECT FROM carillon.jobs WHERE tenant = $1 AND key = $2`, name.Tenant, name.Key)
		t.exec(`UPDATE carillon.occurrences o SET due_at = greatest(o.timestamp, $3) FROM carillon.jobs j
			WHERE j.tenant = $1 AND j.key = $2 AND o.revision = ANY (ARRAY[j.revision]) AND o.token IS NULL
				AND o.due_at > greatest(o.timestamp, $3)`, name.Tenant, name.Key, now.UnixMilli())
	})
	return foundOr(found, err)
}

// foundOr returns the error of a change of one job.
func foundOr(found int, err error) error {
	if err == nil && found == 0 {
		return store.ErrNotFound
	}
	return err
}

// Trigger implements [store.Jobs]. It locks the job: a concurrent cancel either comes before, and Trigger finds no job,
// or comes after, and sees the occurrence. It is one statement for the same reason as in Pause.
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	if !storable(o.Name.Tenant, o.Name.Key) {
		return store.ErrNotFound
	}
	var found int
	step, subscriber := partColumns(o.Part)
	err := s.changeOnce(ctx, func(t *transaction) {
		t.affected(&found, `WITH present AS MATERIALIZED (
				SELECT tenant, key FROM carillon.jobs WHERE tenant = $1 AND key = $2 FOR KEY SHARE
			), inserted AS (
				INSERT INTO carillon.occurrences (tenant, key, lane, revision, id, position, step, subscriber,
					timestamp, due_at, attempt, callback_type, callback_data, options)
				SELECT tenant, key, $13, $3::uuid, $4::uuid, $5::integer, $6::integer, $7,
					$8::bigint, $9::bigint, 0, $10, $11::bytea, $12::bytea
				FROM present ON CONFLICT (revision, id) DO NOTHING
			)
			SELECT FROM present`,
			o.Name.Tenant, o.Name.Key, own, uuid(o.ID), o.Position, step, subscriber,
			o.Timestamp.UnixMilli(), o.DueAt.UnixMilli(),
			o.Own.Callback.Type, data(o.Own.Callback), o.Own.Options.Encode(), o.Lane().String())
	})
	return foundOr(found, err)
}
