#!lua flags=no-writes,allow-oom
-- Counts what there is to fire. It looks at lanes of which something is due, not at occurrences.
--
-- ARGV: 1 now, 2 how many of these lanes to pass over, 3 at how many to look
-- Returns 1 how many are pending, 2 how many are due of the lanes that it has looked at, 3 since when the first of these is, or
--   nothing, 4 how many dead letters there are, 5 at how many lanes it has looked
local buried, due = redis.call('ZCARD', dead), 0
local found = redis.call('ZRANGEBYSCORE', heads, '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
for i = 1, #found, 2 do due = due + redis.call('ZCOUNT', pending .. found[i], '-inf', ARGV[1]) end
return {redis.call('HLEN', occurrences) - buried, due, found[2] or '', buried, #found / 2}
