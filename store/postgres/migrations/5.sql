-- Small documents in named collections; tenants and replicas become records. Replicas of the previous version can't
-- work with this format: stop them first.
CREATE TABLE carillon.records (
	expires_at bigint, -- Unix milliseconds; NULL if it does not expire
	collection text COLLATE "C" NOT NULL,
	key        text COLLATE "C" NOT NULL,
	version    text COLLATE "C" NOT NULL,
	body       bytea NOT NULL,
	PRIMARY KEY (collection, key)
);
CREATE INDEX records_expiry ON carillon.records (expires_at) WHERE expires_at IS NOT NULL;
INSERT INTO carillon.records (collection, key, version, body)
	SELECT 'tenants', name, 'format-4', convert_to('{"firstSeen":' || first_seen || '}', 'UTF8') FROM carillon.tenants
	UNION ALL SELECT 'tenant-settings', name, 'format-4', settings FROM carillon.tenants WHERE settings IS NOT NULL;
INSERT INTO carillon.records (collection, key, version, expires_at, body)
	SELECT 'replicas', id, 'format-4', beats_until, '' FROM carillon.replicas;
DROP TABLE carillon.tenants;
DROP TABLE carillon.replicas;
