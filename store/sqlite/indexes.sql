-- Indexes that files of this format may lack. An older program keeps them up as well, so they change no format.

-- What becomes due, whoever's it is.
CREATE INDEX IF NOT EXISTS occurrences_due ON occurrences (due_at, lane) WHERE due_at IS NOT NULL;
