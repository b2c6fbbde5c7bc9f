#!lua flags=no-writes,allow-oom
-- Reads a job.
--
-- ARGV: 1 name
-- Returns 1 state, 2 the id of its first pending occurrence, if any, 3 target, 4 schedule; nothing if there is no such job
local name = ARGV[1]
local j = read_job(name)
if not j then return {} end
return {redis.call('HGET', jobs, name), next_of(j.revision), redis.call('HGET', targets, name), redis.call('HGET', schedules, name)}
