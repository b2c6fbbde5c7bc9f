-- All times are Unix milliseconds.

-- Rows are appended, and only the small indexes are written at random places. Large columns come last: reading a column
-- behind them costs a walk through their pages.
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
	planned       INTEGER NOT NULL DEFAULT 0, -- 0: unknown
	failed        INTEGER NOT NULL DEFAULT 0,
	trouble       TEXT    NOT NULL DEFAULT '',
	callback_type TEXT    NOT NULL,
	callback_data BLOB    NOT NULL,
	options       BLOB,
	sole          BLOB,             -- id of its only occurrence; NULL: its occurrences are listed
	schedule      BLOB    NOT NULL, -- last, since a claim does not read it
	UNIQUE (tenant, key)
);
CREATE INDEX jobs_expiry ON jobs (expires_at);
-- The jobs that are to be expanded.
CREATE INDEX jobs_expand ON jobs (expand_at) WHERE expand_at IS NOT NULL;

-- Pending occurrences and dead letters, ordered by instant. An occurrence of a job has the number of the job's row
-- instead of the job's name and revision, because it is smaller and found faster. It needs no more: when a job is
-- replaced or deleted, its occurrences are deleted in the same transaction.
CREATE TABLE occurrences (
	id            BLOB    PRIMARY KEY, -- ULID
	job           INTEGER,             -- NULL: standalone
	listed        INTEGER NOT NULL,    -- 1: in occurrences_job, 0: named by the job's "sole", or standalone
	tenant        TEXT,                -- of a standalone one, like the key and the callback
	key           TEXT,
	position      INTEGER NOT NULL,
	timestamp     INTEGER NOT NULL,
	priority      TEXT,                -- NULL: its tenant's
	lane          TEXT    NOT NULL,    -- of its tenant and priority; '' for dead letters
	due_at        INTEGER,             -- NULL for dead letters
	scheduled_at  INTEGER,
	token         TEXT,
	attempt       INTEGER NOT NULL,
	step          INTEGER,             -- NULL: not of a sequence
	subscriber    TEXT,
	last_error    TEXT,
	failed_at     INTEGER,
	callback_type TEXT,
	callback_data BLOB,
	options       BLOB
) WITHOUT ROWID;
-- Claims, and (by the id, which every index ends in) the list of dead letters.
CREATE INDEX occurrences_claim ON occurrences (lane, due_at);
-- The occurrences of a job. Most jobs have one, which is found without this index, so that it needs no entry.
CREATE INDEX occurrences_job ON occurrences (job) WHERE listed = 1;
-- Standalone occurrences and dead letters, by the job's key.
CREATE INDEX occurrences_own ON occurrences (tenant, key, lane) WHERE job IS NULL;

-- Small documents in named collections.
CREATE TABLE records (
	collection TEXT    NOT NULL,
	key        TEXT    NOT NULL,
	version    TEXT    NOT NULL,
	expires_at INTEGER,          -- NULL: does not expire
	body       BLOB    NOT NULL,
	PRIMARY KEY (collection, key)
);
CREATE INDEX records_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;
