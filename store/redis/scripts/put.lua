#!lua
-- Creates or replaces a job, with the last of its occurrences, if the condition holds, and begins to delete those of the
-- revision that it replaces.
--
-- ARGV: 1 name, 2 the latest time to do it by this server's clock, 3 now, 4 how many occurrences to delete at most,
--   5 the condition: "absent", "present", "versions" and the versions, or nothing,
--   6 revision, 7 createdAt, 8 updatedAt, 9 expiresAt, 10 cursor, 11 expandAt, 12 missed, 13 callback type,
--   14 target, 15 schedule, 16 whether the present job leaves neither its pause nor its creation time,
--   17... occurrences, see insert
-- Returns 1 "ok", "late" or "precondition", 2 the time by this server's clock, 3 the revision that was replaced,
--   4 how many of the deleted were held, 5 whether there may be more to delete, 6 since when the job is paused
local name, revision = ARGV[1], ARGV[6]
local t = redis.call('TIME')
local clock = t[1] * 1000 + math.floor(t[2] / 1000)
if clock > tonumber(ARGV[2]) then return {'late', clock} end

local present = read_job(name)
local kind, versions = string.match(ARGV[5], '^(%a*)(.*)$')
if kind == 'absent' and present or kind == 'present' and not present or
  kind == 'versions' and not (present and string.find(versions .. ' ', ' ' .. present.version .. ' ', 1, true)) then
  return {'precondition', clock}
end

local j = {revision = revision, version = revision, created = ARGV[7], updated = ARGV[8], expires = ARGV[9], paused = '0',
  cursor = ARGV[10], expand = ARGV[11], token = '', missed = ARGV[12], type = ARGV[13]}
if present then
  if ARGV[16] == '0' then j.created, j.paused = present.created, present.paused end
  if j.paused ~= '0' then j.expand = '0' end
else
  redis.call('ZADD', names, 0, name)
end
write_job(name, j)
redis.call('HSET', targets, name, ARGV[14])
redis.call('HSET', schedules, name, ARGV[15])
insert(revision, 17)
if not present or present.revision == revision then return {'ok', clock, '', 0, 0, j.paused} end
local _, held, more = drop(members, first_member(present.revision), last_member(present.revision), ARGV[3], ARGV[4])
return {'ok', clock, present.revision, held, more, j.paused}
