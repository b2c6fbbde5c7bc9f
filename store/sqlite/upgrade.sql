-- What makes a file of the format before one of the present format, see schema.sql.
ALTER TABLE jobs ADD COLUMN planned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN trouble TEXT NOT NULL DEFAULT ''
