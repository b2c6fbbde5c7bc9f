#!lua flags=allow-oom
-- Claims due occurrences, the longest due first. Those that are not to fire now are set aside: due when the claim ends, but
-- claimed by nobody. Putting them back properly is the caller's.
--
-- ARGV: 1 up to when they are due, 2 how many at most, 3 now, 4 the lease's end, 5 token
-- Returns 1 the claimed: of each its id, record, error, when it was due, which attempt it is, and whether a claim of it was
--   never settled; 2 those set aside: of each its id, record, why ("orphan", "paused" or "unexpanded") and since when its job
--   is paused; 3 the targets of the claimed: a job's name or an occurrence's id, then its target
local due = redis.call('ZRANGEBYSCORE', pending, '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
if #due == 0 then return {{}, {}, {}} end
local now, ends, token = ARGV[3], ARGV[4], ARGV[5]
local ids, moved = {}, {}
for i = 1, #due, 2 do
  ids[#ids + 1] = due[i]
  moved[i], moved[i + 1] = ends, due[i]
end
redis.call('ZADD', pending, unpack(moved))
local records = redis.call('HMGET', occurrences, unpack(ids))
local states = redis.call('HMGET', attempts, unpack(ids))
local failures = redis.call('HMGET', errors, unpack(ids))

local revisions, instants, jobNames = {}, {}, {}
local jobStates, wanted = {}, {} -- the states of the occurrences' jobs by name, and the names, each once
for i, record in ipairs(records) do
  local revision, at, name = read_record(record or '')
  revisions[i], instants[i], jobNames[i] = revision or false, at, name
  if revision and revision ~= '' and jobStates[name] == nil then
    jobStates[name] = false
    wanted[#wanted + 1] = name
  end
end
if #wanted > 0 then
  local found = redis.call('HMGET', jobs, unpack(wanted))
  for i, name in ipairs(wanted) do jobStates[name] = found[i] end
end

local claimed, aside, stamps, fired, seen = {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local revision, name = revisions[i], jobNames[i]
  local n, scheduled, before = read_attempts(states[i])
  local why, paused
  if not revision then -- nothing is known of it
    why = 'orphan'
  elseif revision ~= '' then
    local present, since, cursor = read_stamps(jobStates[name] or '')
    if present ~= revision then
      why = 'orphan'
    elseif since ~= '0' then
      why, paused = 'paused', since
    elseif cursor ~= '0' and tonumber(instants[i]) > tonumber(cursor) then
      why = 'unexpanded'
    end
  end
  if why then
    if before ~= '' then write_attempts(id, n, '0', '') end
    aside[#aside + 1] = {id, records[i] or '', why, paused or '0'}
  else
    stamps[#stamps + 1] = id
    stamps[#stamps + 1] = (n + 1) .. ' ' .. now .. ' ' .. token
    claimed[#claimed + 1] = {id, records[i], failures[i] or '', due[2 * i], n + 1, scheduled ~= '0' and 1 or 0}
    local target = revision == '' and id or name
    if not seen[target] then
      seen[target] = true
      fired[#fired + 1] = target
    end
  end
end
if #claimed == 0 then return {claimed, aside, {}} end
redis.call('HSET', attempts, unpack(stamps))
local found = redis.call('HMGET', targets, unpack(fired))
local result = {}
for i, target in ipairs(fired) do
  result[2 * i - 1], result[2 * i] = target, found[i] or ''
end
return {claimed, aside, result}
