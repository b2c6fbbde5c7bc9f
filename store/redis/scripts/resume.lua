#!lua flags=allow-oom
-- Resumes a job if it is paused, and brings forward some of its unclaimed occurrences that are due later than their
-- timestamps: to these, or to now if they have passed. The caller repeats the call with the returned id until all are
-- brought forward.
--
-- ARGV: 1 name, 2 its new version, 3 now, 4 how many occurrences to read, 5 the revision and 6 the id that the previous
--   call returned, or nothing
-- Returns 1 whether there is such a job, 2 its revision, 3 the last id read, or nothing if there are no more
local name, now, again = ARGV[1], ARGV[3], ARGV[5] ~= ''
local j = read_job(name)
if not j then return {again and 1 or 0, '', ''} end
if again and (j.revision ~= ARGV[5] or j.paused ~= '0') then return {1, '', ''} end -- it was changed meanwhile
if j.paused ~= '0' then
  j.paused, j.version, j.updated = '0', ARGV[2], now
  if j.cursor ~= '0' then j.expand = now end
  write_job(name, j)
end

local from = again and '(' .. member(j.revision, ARGV[6]) or first_member(j.revision)
local entries = redis.call('ZRANGEBYLEX', members, from, last_member(j.revision), 'LIMIT', 0, ARGV[4])
if #entries == 0 then return {1, j.revision, ''} end
local ids = {}
for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
local states = redis.call('HMGET', attempts, unpack(ids))
local lines = redis.call('HMGET', occurrences, unpack(ids))
local due = read_due(by_lane(ids, lines))
local forward = {}
for i, id in ipairs(ids) do
  local _, _, token = read_attempts(states[i])
  local _, at = read_line(lines[i])
  if tonumber(at) < tonumber(now) then at = now end
  if token == '' and tonumber(due[id]) > tonumber(at) then add_due(forward, lane_of(lines[i]), at, id) end
end
move(forward)
return {1, j.revision, #ids == tonumber(ARGV[4]) and ids[#ids] or ''}
