-- All times are Unix milliseconds.

-- Rows are appended, and only the small indexes are written at random places. What may be large comes last: whatever lies
-- behind it in a row costs a walk through its pages.
CREATE TABLE jobs (
	rowid         INTEGER PRIMARY KEY,
	tenant        TEXT    NOT NULL,
	key           TEXT    NOT NULL,
	revision      TEXT    NOT NULL,
	version       TEXT    NOT NULL,
	created_at    INTEGER NOT NULL,
	updated_at    INTEGER NOT NULL,
	expires_at    INTEGER NOT NULL,
	paused_at     INTEGER,          -- NULL: not paused
	cursor        INTEGER,          -- NULL: does not recur
	expand_at     INTEGER,          -- NULL: nothing to expand, or paused
	expand_token  TEXT,             -- of the claim to expand it, until that ends
	missed        INTEGER NOT NULL,
	planned       INTEGER NOT NULL DEFAULT 0, -- 0: not known
	failed        INTEGER NOT NULL DEFAULT 0,
	trouble       TEXT    NOT NULL DEFAULT '',
	callback_type TEXT    NOT NULL,
	callback_data BLOB    NOT NULL,
	options       BLOB,
	sole          BLOB,             -- id of its one occurrence; NULL: those that it has are listed
	schedule      BLOB    NOT NULL, -- last, since a claim does not read it
	UNIQUE (tenant, key)
);
CREATE INDEX jobs_expiry ON jobs (expires_at);
-- The jobs that are to be expanded.
CREATE INDEX jobs_expand ON jobs (expand_at) WHERE expand_at IS NOT NULL;

-- Pending occurrences and dead letters, ordered by instant. One that belongs to a job has that row's number instead of its
-- name and revision, which is smaller and found faster. It needs no more: when a job is replaced or deleted, its occurrences are
-- deleted in the same transaction.
CREATE TABLE occurrences (
	id            BLOB    PRIMARY KEY, -- ULID
	job           INTEGER,             -- NULL: stands on its own
	listed        INTEGER NOT NULL,    -- 1: is found by its job in occurrences_job, 0: by the job's "sole", or stands on its own
	tenant        TEXT,                -- of one that stands on its own, like the key and the callback
	key           TEXT,
	position      INTEGER NOT NULL,
	timestamp     INTEGER NOT NULL,
	priority      TEXT,                -- NULL: its tenant's
	lane          TEXT    NOT NULL,    -- of its tenant and priority; '' for dead letters
	due_at        INTEGER,             -- NULL for dead letters
	scheduled_at  INTEGER,
	token         TEXT,
	attempt       INTEGER NOT NULL,
	step          INTEGER,             -- NULL: of no sequence
	subscriber    TEXT,
	last_error    TEXT,
	failed_at     INTEGER,
	callback_type TEXT,
	callback_data BLOB,
	options       BLOB
) WITHOUT ROWID;
-- Claims, and (by the id, which every index ends in) the list of dead letters.
CREATE INDEX occurrences_claim ON occurrences (lane, due_at);
-- The occurrences of a job. Most jobs have one, which is found without, so that nothing need be written here.
CREATE INDEX occurrences_job ON occurrences (job) WHERE listed = 1;
-- Those that stand on their own, and dead letters, by the job's key.
CREATE INDEX occurrences_own ON occurrences (tenant, key, lane) WHERE job IS NULL;

-- The replicas that may be claiming.
CREATE TABLE replicas (
	id    TEXT    PRIMARY KEY,
	until INTEGER NOT NULL
) WITHOUT ROWID;

-- What is known of tenants.
CREATE TABLE tenants (
	name       TEXT    PRIMARY KEY,
	first_seen INTEGER NOT NULL,
	settings   BLOB              -- NULL: the defaults
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS occurrences_due ON occurrences (due_at, lane) WHERE due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS tenants_set ON tenants (name) WHERE settings IS NOT NULL;
