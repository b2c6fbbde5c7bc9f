#!lua flags=allow-oom
-- Notes the names of tenants that have settings of their own. So one can be paused although the store is full.
--
-- KEYS: 1 the key of these names
-- ARGV: names
for _, name in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 0, name) end
return 1
