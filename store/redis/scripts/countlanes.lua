#!lua flags=no-writes,allow-oom
-- Counts the occurrences of lanes without reading them: a sorted set knows its number of entries, also up to a score.
--
-- ARGV: 1 now, 2... lanes
-- Returns of each lane that is not empty: its place among the lanes, how many of its occurrences are pending, and how
--   many are due
local counts = {}
for place, there in ipairs(redis.call('ZMSCORE', heads, unpack(ARGV, 2))) do
  if there then
    local set, n = pending .. ARGV[place + 1], #counts
    counts[n + 1], counts[n + 2] = place, redis.call('ZCARD', set)
    counts[n + 3] = redis.call('ZCOUNT', set, '-inf', ARGV[1])
  end
end
return counts
