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
	-- Room for what changes in place: a pause, an amendment, a missed instant.
	fillfactor = 90,
	-- A recurring job is written twice at each expansion.
	autovacuum_vacuum_scale_factor = 0.05
);
-- A claim finds the jobs of what it takes.
CREATE INDEX jobs_revision ON carillon.jobs (revision);
CREATE INDEX jobs_expiry ON carillon.jobs (expires_at);
CREATE INDEX jobs_expansion ON carillon.jobs (expand_at) WHERE expand_at IS NOT NULL;

-- Pending occurrences and dead letters. An occurrence is written three times: inserted, claimed, deleted. A claim moves
-- due_at, which is indexed, so no update of this table is a heap-only one, and room left on the pages for those would be
-- room wasted on all that wait.
--
-- One that belongs to a job has that one's revision, which is shorter than its name and found faster. It needs no more: a job
-- and its occurrences change in one transaction. What stands on its own, as dead letters do, has the last of all revisions, so
-- that it comes last in an export: an occurrence that is buried during that must not be passed over.
CREATE TABLE carillon.occurrences (
	timestamp     bigint  NOT NULL,
	due_at        bigint,           -- NULL for dead letters
	scheduled_at  bigint,
	failed_at     bigint,           -- of dead letters
	position      integer NOT NULL,
	attempt       integer NOT NULL,
	step          integer,          -- of a sequence
	revision      uuid    NOT NULL, -- ffffffff-ffff-ffff-ffff-ffffffffffff: stands on its own
	id            uuid    NOT NULL, -- unique among all: one that is buried has left its revision
	lane          text    COLLATE "C" NOT NULL, -- of its tenant and priority, whether it is pending or not
	tenant        text    COLLATE "C", -- the name and the callback of one that stands on its own
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
	-- Each delivery leaves two dead rows, and the claim index is read from its dead end. So the table is vacuumed as often as
	-- autovacuum comes by, as fast as it can.
	autovacuum_vacuum_scale_factor = 0.01,
	autovacuum_vacuum_threshold = 2000,
	autovacuum_vacuum_cost_delay = 0,
	-- It is full again in a moment, and giving its end back to the disk locks it.
	vacuum_truncate = false
);
-- Claims, and the lanes. Those of one instant and lane are claimed as they lie in the table, which costs less than to go by
-- their ids, and those that one claim has made due at its lease's end share entries.
CREATE INDEX occurrences_claim ON carillon.occurrences (lane, due_at, timestamp) WHERE due_at IS NOT NULL;
-- Those that stand on their own, by the job's key.
CREATE INDEX occurrences_own ON carillon.occurrences (tenant, key, id) WHERE tenant IS NOT NULL AND due_at IS NOT NULL;
-- Dead letters: all of a tenant, those of a job, the oldest.
CREATE INDEX occurrences_dead ON carillon.occurrences (tenant, id) WHERE due_at IS NULL;
CREATE INDEX occurrences_dead_key ON carillon.occurrences (tenant, key, id) WHERE due_at IS NULL;
CREATE INDEX occurrences_dead_age ON carillon.occurrences (failed_at) WHERE failed_at IS NOT NULL;

-- What is known of tenants, whether or not they have jobs.
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
