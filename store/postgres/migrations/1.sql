-- All times are Unix milliseconds. Ids and revisions are ULIDs, as their bytes. "C" orders text by its bytes.

CREATE TABLE carillon.jobs (
	created_at    bigint  NOT NULL,
	updated_at    bigint  NOT NULL,
	expires_at    bigint  NOT NULL,
	paused_at     bigint,
	cursor_at     bigint,
	expand_at     bigint,
	missed        bigint  NOT NULL,
	tenant        text    COLLATE "C" NOT NULL,
	key           text    COLLATE "C" NOT NULL,
	revision      uuid    NOT NULL,
	version       text    COLLATE "C" NOT NULL,
	expand_token  text    COLLATE "C",
	callback_type text    COLLATE "C" NOT NULL,
	callback_data bytea   NOT NULL,
	options       bytea,
	schedule      bytea   NOT NULL, -- last, since a claim does not read it
	PRIMARY KEY (tenant, key)
) WITH (
	-- Room for updates in place: a pause, an amendment, a missed instant.
	fillfactor = 90,
	-- A recurring job is written twice at each expansion.
	autovacuum_vacuum_scale_factor = 0.05
);
-- A claim finds the jobs of its occurrences.
CREATE INDEX jobs_revision ON carillon.jobs (revision);
CREATE INDEX jobs_expiry ON carillon.jobs (expires_at);
CREATE INDEX jobs_expansion ON carillon.jobs (expand_at) WHERE expand_at IS NOT NULL;

-- Pending occurrences and dead letters. An occurrence is written three times: inserted, claimed, deleted. A claim
-- changes due_at, which is indexed, so no update of this table is a heap-only one. Free space on the pages for such
-- updates would be wasted on all waiting occurrences.
--
-- An occurrence of a job has the job's revision, which is shorter than its name and found faster. It needs no more,
-- because a job and its occurrences change in one transaction. A standalone occurrence, such as a dead letter, has the
-- greatest revision, so that it comes last in an export: an occurrence that is buried during the export must not be
-- left out.
CREATE TABLE carillon.occurrences (
	timestamp     bigint  NOT NULL,
	due_at        bigint,           -- NULL for dead letters
	scheduled_at  bigint,
	failed_at     bigint,           -- of dead letters
	position      integer NOT NULL,
	attempt       integer NOT NULL,
	step          integer,          -- of a sequence
	revision      uuid    NOT NULL, -- ffffffff-ffff-ffff-ffff-ffffffffffff: standalone
	id            uuid    NOT NULL, -- unique in the table: a buried occurrence has left its revision
	lane          text    COLLATE "C" NOT NULL, -- of its tenant and priority, whether it is pending or not
	tenant        text    COLLATE "C", -- the name and the callback of a standalone occurrence
	key           text    COLLATE "C",
	subscriber    text    COLLATE "C",
	token         text    COLLATE "C",
	last_error    text    COLLATE "C",
	callback_type text    COLLATE "C",
	callback_data bytea,
	options       bytea,
	PRIMARY KEY (revision, id)
) WITH (
	fillfactor = 100,
	-- Each delivery leaves two dead rows, and claims read the index from its dead end. So the table is vacuumed at each
	-- run of autovacuum, as fast as possible.
	autovacuum_vacuum_scale_factor = 0.01,
	autovacuum_vacuum_threshold = 2000,
	autovacuum_vacuum_cost_delay = 0,
	-- The table fills again in a moment, and truncating it takes a lock.
	vacuum_truncate = false
);
-- Claims, and the lanes. Occurrences of one instant and lane are claimed in their physical order, which costs less than
-- the order of their ids. Those that one claim has made due at its lease's end share index entries.
CREATE INDEX occurrences_claim ON carillon.occurrences (lane, due_at, timestamp) WHERE due_at IS NOT NULL;
-- Standalone occurrences, by the job's key.
CREATE INDEX occurrences_own ON carillon.occurrences (tenant, key, id) WHERE tenant IS NOT NULL AND due_at IS NOT NULL;
-- Dead letters: all of a tenant, those of a job, the oldest.
CREATE INDEX occurrences_dead ON carillon.occurrences (tenant, id) WHERE due_at IS NULL;
CREATE INDEX occurrences_dead_key ON carillon.occurrences (tenant, key, id) WHERE due_at IS NULL;
CREATE INDEX occurrences_dead_age ON carillon.occurrences (failed_at) WHERE failed_at IS NOT NULL;

-- The known tenants, with or without jobs.
CREATE TABLE carillon.tenants (
	name       text   COLLATE "C" PRIMARY KEY,
	first_seen bigint NOT NULL,
	settings   bytea  -- NULL if all have their defaults
);

-- The replicas that may be claiming.
CREATE TABLE carillon.replicas (
	id          text   COLLATE "C" PRIMARY KEY,
	beats_until bigint NOT NULL
);
