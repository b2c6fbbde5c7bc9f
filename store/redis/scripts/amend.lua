#!lua
-- Changes a job's callback and options.
--
-- ARGV: 1 name, 2 the version that it must have, 3 its new version, 4 now, 5 callback type, 6 target
-- Returns "ok", "missing" or "precondition"
local j = read_job(ARGV[1])
if not j then return 'missing' end
if j.version == ARGV[3] then return 'ok' end -- an earlier call made this change
if j.version ~= ARGV[2] then return 'precondition' end
j.version, j.updated, j.type = ARGV[3], ARGV[4], ARGV[5]
write_job(ARGV[1], j)
redis.call('HSET', targets, ARGV[1], ARGV[6])
return 'ok'
