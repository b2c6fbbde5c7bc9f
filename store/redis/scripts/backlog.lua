#!lua flags=no-writes,allow-oom
-- Counts what there is to fire. It looks at lanes, not at occurrences.
--
-- ARGV: 1 now
-- Returns 1 how many are pending, 2 how many of them are due, 3 since when the first is, or nothing, 4 how many dead letters
--   there are
local buried, due, since = redis.call('ZCARD', dead), 0, ''
for _, lane in ipairs(redis.call('SMEMBERS', lanes)) do
  local first = redis.call('ZRANGE', pending .. lane, 0, 0, 'WITHSCORES')[2]
  if tonumber(first) <= tonumber(ARGV[1]) then
    due = due + redis.call('ZCOUNT', pending .. lane, '-inf', ARGV[1])
    if since == '' or tonumber(first) < tonumber(since) then since = first end
  end
end
return {redis.call('HLEN', occurrences) - buried, due, since, buried}
