-- What has become of a job's occurrences. Of a job that was put before, planned stays 0, which is not known.
ALTER TABLE carillon.jobs ADD COLUMN planned bigint NOT NULL DEFAULT 0;
ALTER TABLE carillon.jobs ADD COLUMN failed bigint NOT NULL DEFAULT 0;
ALTER TABLE carillon.jobs ADD COLUMN trouble text COLLATE "C" NOT NULL DEFAULT '';
