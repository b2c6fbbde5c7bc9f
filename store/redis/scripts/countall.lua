#!lua flags=no-writes,allow-oom
-- Counts the shard's occurrences. It reads the lanes that have due occurrences, not the occurrences.
--
-- ARGV: 1 now, 2 how many of these lanes to skip, 3 the greatest number of lanes to read
-- Returns 1 how many occurrences are pending, 2 how many are due in the lanes that it has read, 3 the number of dead
--   letters, 4 how many lanes it has read
local buried, due = redis.call('ZCARD', dead), 0
local found = redis.call('ZRANGEBYSCORE', heads, '-inf', ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
for _, lane in ipairs(found) do due = due + redis.call('ZCOUNT', pending .. lane, '-inf', ARGV[1]) end
return {redis.call('HLEN', occurrences) - buried, due, buried, #found}
