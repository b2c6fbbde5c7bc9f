-- The outcomes of a job's occurrences. For jobs that were put before, planned stays 0, which means unknown.
ALTER TABLE carillon.jobs ADD COLUMN planned bigint NOT NULL DEFAULT 0;
ALTER TABLE carillon.jobs ADD COLUMN failed bigint NOT NULL DEFAULT 0;
ALTER TABLE carillon.jobs ADD COLUMN trouble text COLLATE "C" NOT NULL DEFAULT '';
