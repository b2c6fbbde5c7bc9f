-- Indexes that files of this format may lack. An older program maintains them as well, so they do not change the
-- format.

-- The occurrences of all lanes by due time.
CREATE INDEX IF NOT EXISTS occurrences_due ON occurrences (due_at, lane) WHERE due_at IS NOT NULL;
