#!lua flags=no-writes,allow-oom
-- Counts what lanes have. It reads none of it: a sorted set tells how many entries it has, also up to a score.
--
-- ARGV: 1 now, 2... lanes
-- Returns of each lane that is not empty its place among the lanes, how many occurrences are pending, and how many of them
--   are due
local counts = {}
for place, there in ipairs(redis.call('ZMSCORE', heads, unpack(ARGV, 2))) do
  if there then
    local set, n = pending .. ARGV[place + 1], #counts
    counts[n + 1], counts[n + 2], counts[n + 3] = place, redis.call('ZCARD', set), redis.call('ZCOUNT', set, '-inf', ARGV[1])
  end
end
return counts
