-- Upgrades a file of format 5 to format 6, see schema.sql: tenants and replicas become records. Records are small
-- documents in named collections.
CREATE TABLE records (
	collection TEXT    NOT NULL,
	key        TEXT    NOT NULL,
	version    TEXT    NOT NULL,
	expires_at INTEGER,          -- NULL: does not expire
	body       BLOB    NOT NULL,
	PRIMARY KEY (collection, key)
);
CREATE INDEX records_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;

INSERT INTO records (collection, key, version, body)
	SELECT 'tenants', name, 'format-5', CAST('{"firstSeen":' || first_seen || '}' AS BLOB) FROM tenants
	UNION ALL SELECT 'tenant-settings', name, 'format-5', settings FROM tenants WHERE settings IS NOT NULL;
INSERT INTO records (collection, key, version, expires_at, body) SELECT 'replicas', id, 'format-5', until, x'' FROM replicas;
DROP TABLE tenants;
DROP TABLE replicas
