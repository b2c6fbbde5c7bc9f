-- Marks a store of one format as being of another, unless it is of a newer one by now.
--
-- KEYS: 1 the store's own key
-- ARGV: 1 the format before, 2 the format
if redis.call('HGET', KEYS[1], 'format') == ARGV[1] then redis.call('HSET', KEYS[1], 'format', ARGV[2]) end
return 1
