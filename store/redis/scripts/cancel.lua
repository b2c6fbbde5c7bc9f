#!lua flags=allow-oom
-- Deletes a job and the pending occurrences of its name, and counts these, unless the job came after the request or does
-- not meet its condition. If the standalone occurrences reach the limit, it deletes that many of them and nothing else,
-- and must be called again: the last call is the moment of the cancellation.
--
-- ARGV: 1 name, 2 now, 3 the greatest number of occurrences of each kind to delete, 4 the span of versions that came
--   after the request, see superseded, 5 the condition, see holds
-- Returns 1 "superseded" or "precondition"; else "found" or nothing, 2 how many occurrences were not held, 3 how many were held,
--   4 whether to call again, 5 the revision whose remaining occurrences were counted and are yet to be deleted, if any
local name, now, limit = ARGV[1], ARGV[2], ARGV[3]
local j = read_job(name)
if j and superseded(j, ARGV[4]) then return {'superseded', 0, 0, 0, ''} end
if not holds(ARGV[5], j) then return {'precondition', 0, 0, 0, ''} end

local cancelled, held = 0, 0
local entries = redis.call('ZRANGEBYLEX', own, first_owned(name), last_owned(name), 'LIMIT', 0, limit)
if #entries > 0 then
  local ids = ids_of(entries)
  local _, n = find_held(ids, now)
  cancelled, held = #ids - n, n
  delete_all(ids, redis.call('HMGET', occurrences, unpack(ids)))
  redis.call('ZREM', own, unpack(entries))
  redis.call('HDEL', targets, unpack(ids))
  if #entries == tonumber(limit) then return {'found', cancelled, held, 1, ''} end
end
if not j then return {#entries > 0 and 'found' or '', cancelled, held, 0, ''} end

delete_job(name)
local c, h, more = drop(j.revision, true, now, limit, entries_of(j.revision, limit))
cancelled, held = cancelled + c, held + h
if more == 1 then
  c, h = count(j.revision, now)
  cancelled, held = cancelled + c, held + h
end
return {'found', cancelled, held, 0, more == 1 and j.revision or ''}
