#!lua flags=allow-oom
-- Claims due occurrences, the longest due first. Those that are not to fire now are set aside: due when the claim ends, but
-- claimed by nobody. Putting them back properly is the caller's. If there is one to set aside, so are all others among the
-- first that are due, so that not even a claim of one at a time is long about a paused backlog.
--
-- ARGV: 1 up to when those to claim are due, 2 how many of them at most, 3 now, 4 the lease's end, 5 token,
--   6 up to when those to set aside are due, 7 among how many to look for them, with those to claim
-- Returns 1 the claimed: of each its id, record, error, when it was due, which attempt it is, and whether a claim of it was
--   never settled; 2 those set aside: of each its id, record, why ("orphan", "paused" or "unexpanded") and since when its job
--   is paused; 3 the targets of the claimed: a job's name or an occurrence's id, then its target
local now, ends, token = ARGV[3], ARGV[4], ARGV[5]
local claimed, aside, moved, stamps, fired, seen = {}, {}, {}, {}, {}, {}
local jobStates = {} -- of the occurrences' jobs, by name

-- Why an occurrence is not to fire now, if so, and since when its job is paused, if that is why.
local function obstacle(revision, at, name)
  if not revision then return 'orphan' end -- nothing is known of it
  if revision == '' then return nil end
  local present, since, cursor = read_stamps(jobStates[name] or '')
  if present ~= revision then return 'orphan' end
  if since ~= '0' then return 'paused', since end
  if cursor ~= '0' and tonumber(at) > tonumber(cursor) then return 'unexpanded' end
end

local function move(id)
  moved[#moved + 1] = ends
  moved[#moved + 1] = id
end

-- Looks at count due occurrences but for the first few, and sets aside what is not to fire now. It claims the others, or
-- leaves them. Returns how many there were.
local function look(bound, first, count, claims)
  local due = redis.call('ZRANGEBYSCORE', pending, '-inf', bound, 'WITHSCORES', 'LIMIT', first, count)
  if #due == 0 then return 0 end
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  local records = redis.call('HMGET', occurrences, unpack(ids))
  local states = redis.call('HMGET', attempts, unpack(ids))
  local failures = claims and redis.call('HMGET', errors, unpack(ids))

  local revisions, instants, jobNames, wanted = {}, {}, {}, {}
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

  for i, id in ipairs(ids) do
    local revision, name = revisions[i], jobNames[i]
    local n, scheduled, before = read_attempts(states[i])
    local why, since = obstacle(revision, instants[i], name)
    if why then
      if before ~= '' then write_attempts(id, n, '0', '') end
      aside[#aside + 1] = {id, records[i] or '', why, since or '0'}
      move(id)
    elseif claims then
      stamps[#stamps + 1] = id
      stamps[#stamps + 1] = (n + 1) .. ' ' .. now .. ' ' .. token
      claimed[#claimed + 1] = {id, records[i], failures[i] or '', due[2 * i], n + 1, scheduled ~= '0' and 1 or 0}
      move(id)
      local target = revision == '' and id or name
      if not seen[target] then
        seen[target] = true
        fired[#fired + 1] = target
      end
    end
  end
  return #ids
end

local found = look(ARGV[1], 0, ARGV[2], true)
local more = tonumber(ARGV[7]) - found
if #aside > 0 and more > 0 then look(ARGV[6], found, more, false) end
if #moved == 0 then return {{}, {}, {}} end
redis.call('ZADD', pending, unpack(moved))
if #claimed == 0 then return {{}, aside, {}} end
redis.call('HSET', attempts, unpack(stamps))
local result = {}
for i, target in ipairs(redis.call('HMGET', targets, unpack(fired))) do
  result[2 * i - 1], result[2 * i] = fired[i], target or ''
end
return {claimed, aside, result}
