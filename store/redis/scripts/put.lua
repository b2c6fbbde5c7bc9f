#!lua
-- Creates or replaces jobs, each with the last of its occurrences, if its condition holds, and begins to delete those of the
-- revisions that they replace. What it writes of all jobs it gathers, to write it by one call for each key: calls cost more
-- than what they do.
--
-- ARGV: 1 the latest time to do it by this server's clock, 2 how many occurrences to delete in all, but for a few of each job,
--   lest one that has many makes all others take another script; then of each job, no two of which have the same name:
--   1 name, 2 the condition: "absent", "present", "versions" and the versions, or nothing, 3 revision, 4 createdAt,
--   5 updatedAt, 6 expiresAt, 7 cursor, 8 expandAt, 9 missed, 10 callback type, 11 target, 12 schedule, 13 whether the present
--   job leaves neither its pause nor its creation time, 14 now, 15 how many occurrences follow, 16... those, see add
-- Returns 1 "ok" or "late", 2 the time by this server's clock, 3 of each job that was not just created: its place among the
--   jobs, "ok" or "precondition", the revision that was replaced, how many of the deleted were held, whether there may be
--   more to delete, since when the job is paused
local budget, few = tonumber(ARGV[2]), 10
local t = redis.call('TIME')
local clock = t[1] * 1000 + math.floor(t[2] / 1000)
if clock > tonumber(ARGV[1]) then return {'late', clock, {}} end

local starts, jobNames = {}, {}
local from = 3
while from <= #ARGV do
  starts[#starts + 1], jobNames[#jobNames + 1] = from, ARGV[from]
  from = from + 15 + 4 * ARGV[from + 14]
end

local function holds(condition, present)
  local kind, versions = string.match(condition, '^(%a*)(.*)$')
  if kind == 'absent' then return not present end
  if kind == 'present' then return present end
  return kind ~= 'versions' or present and string.find(versions .. ' ', ' ' .. present.version .. ' ', 1, true)
end

local answers, replaced = {}, {}
local created, states, expiries, expansions, jobTargets, jobSchedules = {}, {}, {}, {}, {}, {}
local added = no_occurrences()
local function pair(list, a, b) list[#list + 1], list[#list + 2] = a, b end

for place, text in ipairs(redis.call('HMGET', jobs, unpack(jobNames))) do
  local at, name = starts[place], jobNames[place]
  local present, revision = text and read_state(text), ARGV[at + 2]
  if ARGV[at + 1] ~= '' and not holds(ARGV[at + 1], present) then
    answers[#answers + 1] = {place, 'precondition'}
  else
    local j = {revision = revision, version = revision, created = ARGV[at + 3], updated = ARGV[at + 4], expires = ARGV[at + 5],
      paused = '0', cursor = ARGV[at + 6], expand = ARGV[at + 7], token = '', missed = ARGV[at + 8], type = ARGV[at + 9]}
    if present then
      if ARGV[at + 12] == '0' then j.created, j.paused = present.created, present.paused end
      if j.paused ~= '0' then j.expand = '0' end
      if j.expand == '0' and present.expand ~= '0' then redis.call('ZREM', expansion, name) end
      local answer = {place, 'ok', '', 0, 0, j.paused}
      answers[#answers + 1] = answer
      if present.revision ~= revision then
        answer[3] = present.revision
        replaced[#replaced + 1] = answer
      end
    else
      pair(created, 0, name)
    end
    pair(states, name, write_state(j))
    pair(expiries, j.expires, name)
    if j.expand ~= '0' then pair(expansions, j.expand, name) end
    pair(jobTargets, name, ARGV[at + 10])
    pair(jobSchedules, name, ARGV[at + 11])
    add(added, revision, at + 15, at + 14 + 4 * ARGV[at + 14])
  end
end

write(created, 'ZADD', names)
write(states, 'HSET', jobs)
write(expiries, 'ZADD', expiry)
write(expansions, 'ZADD', expansion)
write(jobTargets, 'HSET', targets)
write(jobSchedules, 'HSET', schedules)
insert_all(added)

for _, answer in ipairs(replaced) do
  local left
  left, answer[4], answer[5] = drop(members, first_member(answer[3]), last_member(answer[3]), ARGV[starts[answer[1]] + 13],
    math.max(budget, few))
  budget = budget - left - answer[4]
end
return {'ok', clock, answers}
