#!lua
-- Inserts a job as exported, unless there is one of its name.
--
-- ARGV: 1 name, 2 revision, 3 version, 4 createdAt, 5 updatedAt, 6 expiresAt, 7 pausedAt, 8 cursor, 9 expandAt, 10
--   counts, 11 callback type, 12 target, 13 schedule
-- Returns "inserted", "same" or "other"
local name = ARGV[1]
local j = read_job(name)
if j then return j.revision == ARGV[2] and j.version == ARGV[3] and 'same' or 'other' end
write_job(name, {revision = ARGV[2], version = ARGV[3], created = ARGV[4], updated = ARGV[5], expires = ARGV[6],
  paused = ARGV[7], cursor = ARGV[8], expand = ARGV[9], token = '', counts = ARGV[10], type = ARGV[11]})
redis.call('ZADD', names, 0, name)
redis.call('HSET', targets, name, ARGV[12])
redis.call('HSET', schedules, name, ARGV[13])
return 'inserted'
