-- The due occurrences of all lanes, so that a replica finds them without a query for each lane. The server maintains
-- the index for replicas of the previous version too. Its creation blocks writes, for a second or two with a million
-- occurrences.
CREATE INDEX occurrences_due ON carillon.occurrences (due_at, lane) WHERE due_at IS NOT NULL;
-- The tenants that have settings of their own.
CREATE INDEX tenants_set ON carillon.tenants (name) WHERE settings IS NOT NULL;
