#!lua flags=allow-oom
-- Claims due occurrences by quotas, the longest due of each first. Occurrences that must not fire now are set aside:
-- due when the claim ends, but unclaimed. The caller puts them back to their proper times. An occurrence that belongs
-- to its job by a mark only, see `heirs`, is rewritten as the job's, and left to the next claim. If a quota has an
-- occurrence to set aside, all such occurrences among its first due ones are set aside, so that even claims of one
-- occurrence at a time get past a paused backlog soon.
--
-- The answer has parallel lists of the claimed occurrences' fields, as Redis returned them. To build a table for each
-- occurrence would take longer than the rest of the script.
--
-- ARGV: 1 now, 2 the lease's end, 3 token, 4 the lower bound of times that are not due yet, 5 the greatest number of
--   occurrences to read, for claiming and setting aside, 6 whether to return when the claimed ones were due; then of
--   each quota: 1 lane, 2 the lower and 3 the upper bound of due times to claim, 4 the greatest number to claim, 5 the
--   upper bound of due times to set aside
-- Returns 1 the ids of the claimed, 2 their lines, 3 when they were due, if asked for; 4 of each that was claimed
--   before or has an error: its place among the claimed, the number of its attempt, whether an earlier claim was never
--   settled, and its error; 5 of each that was set aside: its id, line, the reason ("orphan", "paused" or
--   "unexpanded"), since when its job is paused, and its lane; 6 the targets of the claimed, in the order in which the
--   claimed first refer to them: a job's target once, and a standalone occurrence's own; 7 of each quota: how many were
--   claimed, how many were set aside or left, and when the lane's next one becomes due, or nothing
local now, ends, token, spare = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local claimed, claimedLines, before, aside = {}, {}, {}, {}
local moved, stamps, fired, seen, dues, left = {}, {}, {}, {}, {}, {}
local adopted = 0
local fresh = '1 ' .. now .. ' ' .. token

-- Returns the reason why an occurrence must not fire now, or nil. If the reason is a pause, returns its start too.
local function obstacle(revision, line, state)
  if not revision then return 'orphan' end -- its line is damaged
  if revision == '' then return nil end
  if not state then return 'orphan' end
  if string.sub(state, 1, #revision + 5) == revision .. ' 0 0 ' then return nil end -- neither paused nor recurring
  local present, since, cursor = read_stamps(state)
  if present ~= revision then return 'orphan' end
  if since ~= '0' then return 'paused', since end
  if cursor == '0' then return nil end
  local _, at = read_line(line)
  if not at then return 'orphan' end
  if tonumber(at) > tonumber(cursor) then return 'unexpanded' end
end

local function delay(id)
  moved[#moved + 1] = ends
  moved[#moved + 1] = id
end

-- Reads up to count due occurrences of a lane, after the first few, and sets aside those that must not fire now. Claims
-- the others, or leaves them. Returns how many it has read.
local function look(lane, after, bound, first, count, claims)
  local ids = redis.call('ZRANGEBYSCORE', pending .. lane, after, bound, 'LIMIT', first, count)
  if #ids == 0 then return 0 end
  local lines = redis.call('HMGET', occurrences, unpack(ids))
  local states = redis.call('HMGET', attempts, unpack(ids))
  local failures = claims and redis.call('EXISTS', errors) == 1 and redis.call('HMGET', errors, unpack(ids)) or {}
  local revisions, jobNames = {}, {}
  for i, line in ipairs(lines) do
    local revision, name = read_owner(line or '')
    revisions[i], jobNames[i] = revision or false, name or ''
  end
  local jobStates = redis.call('HMGET', jobs, unpack(jobNames))

  for i, id in ipairs(ids) do
    local revision, line, state = revisions[i], lines[i], states[i]
    local why, since = obstacle(revision, line, jobStates[i])
    if why == 'orphan' and revision and adopt(id, line, jobStates[i] and read_state(jobStates[i])) then
      adopted = adopted + 1
    elseif why then
      local n, _, held = read_attempts(state)
      if held ~= '' then write_attempts(id, n, '0', '') end
      aside[#aside + 1] = {id, line or '', why, since or '0', lane}
      delay(id)
    elseif claims then
      local place = #claimed + 1
      claimed[place], claimedLines[place] = id, line
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

-- Claims by the quota that begins at an index of ARGV.
local function claim(at)
  local lane, after, claimedBefore, asideBefore, adoptedBefore = ARGV[at], ARGV[at + 1], #claimed, #aside, adopted
  moved = {}
  local found = look(lane, after, ARGV[at + 2], 0, ARGV[at + 3], true)
  spare = spare - found
  if #aside > asideBefore and spare > 0 then spare = spare - look(lane, after, ARGV[at + 4], found, spare, false) end
  if #moved > 0 then
    if ARGV[6] == '1' and #claimed > claimedBefore then
      local times = redis.call('ZMSCORE', pending .. lane, unpack(claimed, claimedBefore + 1))
      for _, due in ipairs(times) do dues[#dues + 1] = due end
    end
    redis.call('ZADD', pending .. lane, unpack(moved))
  end
  local nextDue = redis.call('ZRANGEBYSCORE', pending .. lane, ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #moved > 0 and after == '-inf' and found < tonumber(ARGV[at + 3]) and '(' .. ARGV[at + 2] == ARGV[4] then
    redis.call('ZADD', heads, nextDue[2], lane) -- nothing is due any more
  else
    note_head(lane)
  end
  left[#left + 1] = {#claimed - claimedBefore, #aside - asideBefore + adopted - adoptedBefore, nextDue[2] or ''}
end

for at = 7, #ARGV, 5 do claim(at) end
if #claimed == 0 then return {{}, {}, {}, {}, aside, {}, left} end
redis.call('HSET', attempts, unpack(stamps))
return {claimed, claimedLines, dues, before, aside, redis.call('HMGET', targets, unpack(fired)), left}
