#!lua flags=no-writes,allow-oom
-- Counts what there is to fire. It looks at lanes of which something is due, not at occurrences.
--
-- ARGV: 1 now, 2 how many of these lanes to pass over, 3 at how many to look
-- Returns 1 how many are pending, 2 how many are due of the lanes that it has looked at, 3 how many dead letters there are, 4 at
--   how many lanes it has looked
local buried, due = redis.call('ZCARD', dead), 0
local found = redis.call('ZRANGEBYSCORE', heads, '-inf', ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
for _, lane in ipairs(found) do due = due + redis.call('ZCOUNT', pending .. lane, '-inf', ARGV[1]) end
return {redis.call('HLEN', occurrences) - buried, due, buried, #found}
