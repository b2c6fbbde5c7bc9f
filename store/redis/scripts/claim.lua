#!lua flags=allow-oom
-- Claims due occurrences by quotas, of each the longest due first. Those that are not to fire now are set aside: due when the
-- claim ends, but claimed by nobody. Putting them back properly is the caller's. What is its job's by a mark only, see heirs, is made
-- its job's, and left to the next claim. If there is one to set aside, so are all
-- others of the quota among the first that are due, so that not even a claim of one at a time is long about a paused backlog.
--
-- What it answers of the claimed is lists of what Redis gave it, one beside the other. To make a table of each costs more
-- than all else that it does.
--
-- ARGV: 1 now, 2 the lease's end, 3 token, 4 after when is not due yet, as a bound, 5 among how many to look for those to
--   set aside, with those to claim, 6 whether to tell when the claimed were due; then of each quota: 1 lane, 2 the bound after
--   which and 3 up to when those to claim are due, 4 how many of them at most, 5 up to when those to set aside are due
-- Returns 1 the ids of the claimed, 2 their records, 3 when they were due, if asked for, 4 of each that was claimed before or
--   has an error: its place among the claimed, which attempt it is, whether a claim of it was never settled, and its error;
--   5 those set aside: of each its id, record, why ("orphan", "paused" or "unexpanded"), since when its job is paused, and its
--   lane; 6 the targets of the claimed, in the order in which they come to be needed: a job's once, however many it has, and
--   the own one of what stands on its own; 7 of each quota: how many are claimed, how many are set aside or left, and when the next of
--   the lane becomes due that is not due yet, or nothing
local now, ends, token, spare = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local claimed, claimedRecords, before, aside = {}, {}, {}, {}
local moved, stamps, fired, seen, dues, left = {}, {}, {}, {}, {}, {}
local adopted = 0
local fresh = '1 ' .. now .. ' ' .. token

-- Why an occurrence is not to fire now, if so, and since when its job is paused, if that is why.
local function obstacle(revision, record, state)
  if not revision then return 'orphan' end -- nothing is known of it
  if revision == '' then return nil end
  if not state then return 'orphan' end
  if string.sub(state, 1, #revision + 5) == revision .. ' 0 0 ' then return nil end -- neither paused nor recurring
  local present, since, cursor = read_stamps(state)
  if present ~= revision then return 'orphan' end
  if since ~= '0' then return 'paused', since end
  if cursor == '0' then return nil end
  local _, at = read_record(record)
  if not at then return 'orphan' end
  if tonumber(at) > tonumber(cursor) then return 'unexpanded' end
end

local function delay(id)
  moved[#moved + 1] = ends
  moved[#moved + 1] = id
end

-- Looks at count due occurrences of a lane but for the first few, and sets aside what is not to fire now. It claims the others,
-- or leaves them. Returns how many there were.
local function look(lane, after, bound, first, count, claims)
  local ids = redis.call('ZRANGEBYSCORE', pending .. lane, after, bound, 'LIMIT', first, count)
  if #ids == 0 then return 0 end
  local records = redis.call('HMGET', occurrences, unpack(ids))
  local states = redis.call('HMGET', attempts, unpack(ids))
  local failures = claims and redis.call('EXISTS', errors) == 1 and redis.call('HMGET', errors, unpack(ids)) or {}
  local revisions, jobNames = {}, {}
  for i, record in ipairs(records) do
    local revision, name = read_owner(record or '')
    revisions[i], jobNames[i] = revision or false, name or ''
  end
  local jobStates = redis.call('HMGET', jobs, unpack(jobNames))

  for i, id in ipairs(ids) do
    local revision, record, state = revisions[i], records[i], states[i]
    local why, since = obstacle(revision, record, jobStates[i])
    if why == 'orphan' and revision and adopt(id, record, jobStates[i] and read_state(jobStates[i])) then
      adopted = adopted + 1
    elseif why then
      local n, _, held = read_attempts(state)
      if held ~= '' then write_attempts(id, n, '0', '') end
      aside[#aside + 1] = {id, record or '', why, since or '0', lane}
      delay(id)
    elseif claims then
      local place = #claimed + 1
      claimed[place], claimedRecords[place] = id, record
      stamps[#stamps + 1] = id
      if state or failures[i] then
        local n, scheduled = read_attempts(state)
        stamps[#stamps + 1] = (n + 1) .. ' ' .. now .. ' ' .. token
        before[#before + 1] = {place, n + 1, scheduled ~= '0' and 1 or 0, failures[i] or ''}
      else
        stamps[#stamps + 1] = fresh
      end
      delay(id)
      local target = revision == '' and id or jobNames[i]
      if not seen[target] then
        seen[target] = true
        fired[#fired + 1] = target
      end
    end
  end
  return #ids
end

-- Claims by the quota that ARGV has from an index on.
local function claim(at)
  local lane, after, claimedBefore, asideBefore, adoptedBefore = ARGV[at], ARGV[at + 1], #claimed, #aside, adopted
  moved = {}
  local found = look(lane, after, ARGV[at + 2], 0, ARGV[at + 3], true)
  spare = spare - found
  if #aside > asideBefore and spare > 0 then spare = spare - look(lane, after, ARGV[at + 4], found, spare, false) end
  if #moved > 0 then
    if ARGV[6] == '1' and #claimed > claimedBefore then
      for _, due in ipairs(redis.call('ZMSCORE', pending .. lane, unpack(claimed, claimedBefore + 1))) do dues[#dues + 1] = due end
    end
    redis.call('ZADD', pending .. lane, unpack(moved))
  end
  local nextDue = redis.call('ZRANGEBYSCORE', pending .. lane, ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #moved > 0 and after == '-inf' and found < tonumber(ARGV[at + 3]) and '(' .. ARGV[at + 2] == ARGV[4] then -- nothing is due any more
    redis.call('ZADD', heads, nextDue[2], lane)
  else
    note_head(lane)
  end
  left[#left + 1] = {#claimed - claimedBefore, #aside - asideBefore + adopted - adoptedBefore, nextDue[2] or ''}
end

for at = 7, #ARGV, 5 do claim(at) end
if #claimed == 0 then return {{}, {}, {}, {}, aside, {}, left} end
redis.call('HSET', attempts, unpack(stamps))
return {claimed, claimedRecords, dues, before, aside, redis.call('HMGET', targets, unpack(fired)), left}
