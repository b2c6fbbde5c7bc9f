-- What becomes due, whoever's it is: so a replica finds it without a look at each lane. The server keeps it up for replicas of the
-- version before, too. While it is made, nothing can be written: a second or two for a million occurrences.
CREATE INDEX occurrences_due ON carillon.occurrences (due_at, lane) WHERE due_at IS NOT NULL;
-- The tenants that have settings of their own.
CREATE INDEX tenants_set ON carillon.tenants (name) WHERE settings IS NOT NULL;
