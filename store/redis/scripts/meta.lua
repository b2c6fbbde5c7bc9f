-- Marks a new store as ours, or reads how it was made.
--
-- KEYS: 1 the store's own key
-- ARGV: 1 format, 2 how many shards
-- Returns 1 format, 2 how many shards
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'shards', ARGV[2])
end
return redis.call('HMGET', KEYS[1], 'format', 'shards')
