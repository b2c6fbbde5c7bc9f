#!lua
-- Inserts a standalone occurrence, if there is a job of its name.
--
-- ARGV: 1 name, 2 id, 3 line, 4 dueAt, 5 target
-- Returns whether there is such a job
local name, id = ARGV[1], ARGV[2]
if redis.call('HEXISTS', jobs, name) == 0 then return 0 end
if redis.call('HSETNX', occurrences, id, ARGV[3]) == 1 then
  redis.call('HSET', targets, id, ARGV[5])
  enter({[lane_of(ARGV[3])] = {ARGV[4], id}})
  redis.call('ZADD', own, 0, owned(name, id))
end
return 1
