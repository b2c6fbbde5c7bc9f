#!lua flags=allow-oom
-- Resumes a job, unless it is not paused, and makes some of its occurrences due that are not claimed and whose instants
-- have passed. To make all of them due, it is called again with the id that it answered.
--
-- ARGV: 1 name, 2 the version from then on, 3 now, 4 an id after those whose instants have passed,
--   5 how many occurrences to look at, 6 the revision and 7 the id that the call before answered, or nothing
-- Returns 1 whether there is such a job, 2 its revision, 3 the last id looked at, or nothing if there are no more
local name, now, again = ARGV[1], ARGV[3], ARGV[6] ~= ''
local j = read_job(name)
if not j then return {again and 1 or 0, '', ''} end
if again and (j.revision ~= ARGV[6] or j.paused ~= '0') then return {1, '', ''} end -- it was changed meanwhile
if j.paused ~= '0' then
  j.paused, j.version, j.updated = '0', ARGV[2], now
  if j.cursor ~= '0' then j.expand = now end
  write_job(name, j)
end

local from = again and '(' .. member(j.revision, ARGV[7]) or first_member(j.revision)
local entries = redis.call('ZRANGEBYLEX', members, from, '(' .. member(j.revision, ARGV[4]), 'LIMIT', 0, ARGV[5])
if #entries == 0 then return {1, j.revision, ''} end
local ids = {}
for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
local states = redis.call('HMGET', attempts, unpack(ids))
local due = redis.call('ZMSCORE', pending, unpack(ids))
for i, id in ipairs(ids) do
  local _, _, token = read_attempts(states[i])
  if token == '' and tonumber(due[i]) > tonumber(now) then redis.call('ZADD', pending, now, id) end
end
return {1, j.revision, #ids == tonumber(ARGV[5]) and ids[#ids] or ''}
