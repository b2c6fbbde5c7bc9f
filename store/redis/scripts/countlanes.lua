#!lua flags=no-writes,allow-oom
-- Counts what lanes have. It reads none of it: a sorted set tells how many entries it has, also up to a score.
--
-- ARGV: 1 now, 2... lanes
-- Returns of each lane how many occurrences are pending, and how many of them are due
local counts = {}
for i = 2, #ARGV do
  local lane = pending .. ARGV[i]
  local all = redis.call('ZCARD', lane)
  counts[#counts + 1] = all
  counts[#counts + 1] = all > 0 and redis.call('ZCOUNT', lane, '-inf', ARGV[1]) or 0
end
return counts
