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
local n, m, adopted = 0, 0, 0 -- the lengths of claimed and moved: Lua searches for that of a table
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
  moved[m + 1], moved[m + 2], m = ends, id, m + 2
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
      local count, _, held = read_attempts(state)
      if held ~= '' then write_attempts(id, count, '0', '') end
      aside[#aside + 1] = {id, line or '', why, since or '0', lane}
      delay(id)
    elseif claims then
      n = n + 1
      claimed[n], claimedLines[n], stamps[2 * n - 1], stamps[2 * n] = id, line, id, fresh
      if state or failures[i] then
        local count, scheduled = read_attempts(state)
        stamps[2 * n] = (count + 1) .. ' ' .. now .. ' ' .. token
        before[#before + 1] = {n, count + 1, scheduled ~= '0' and 1 or 0, failures[i] or ''}
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
  local lane, after, claimedBefore, asideBefore, adoptedBefore = ARGV[at], ARGV[at + 1], n, #aside, adopted
  moved, m = {}, 0
  local found = look(lane, after, ARGV[at + 2], 0, ARGV[at + 3], true)
  spare = spare - found
  if #aside > asideBefore and spare > 0 then spare = spare - look(lane, after, ARGV[at + 4], found, spare, false) end
  if m > 0 then
    if ARGV[6] == '1' and n > claimedBefore then
      local times = redis.call('ZMSCORE', pending .. lane, unpack(claimed, claimedBefore + 1))
      for _, due in ipairs(times) do dues[#dues + 1] = due end
    end
    redis.call('ZADD', pending .. lane, unpack(moved))
  end
  local nextDue = redis.call('ZRANGEBYSCORE', pending .. lane, ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if m > 0 and after == '-inf' and found < tonumber(ARGV[at + 3]) and '(' .. ARGV[at + 2] == ARGV[4] then
    redis.call('ZADD', heads, nextDue[2], lane) -- nothing is due any more
  else
    note_head(lane)
  end
  left[#left + 1] = {n - claimedBefore, #aside - asideBefore + adopted - adoptedBefore, nextDue[2] or ''}
end

for at = 7, #ARGV, 5 do claim(at) end
if n == 0 then return {{}, {}, {}, {}, aside, {}, left} end
redis.call('HSET', attempts, unpack(stamps))
return {claimed, claimedLines, dues, before, aside, redis.call('HMGET', targets, unpack(fired)), left}
