-- Writes a new store's format and number of shards, or raises an older format, and reads both.
--
-- KEYS: 1 the store's own key
-- ARGV: 1 format, 2 the number of shards, 3 the oldest format that is raised to this one
-- Returns 1 format, 2 the number of shards
local there = redis.call('HGET', KEYS[1], 'format')
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'shards', ARGV[2])
elseif there and tonumber(there) and tonumber(there) >= tonumber(ARGV[3]) and tonumber(there) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'format', ARGV[1])
end
return redis.call('HMGET', KEYS[1], 'format', 'shards')
