#!lua flags=allow-oom
-- Deletes a job and what is pending of its name, and counts it all, unless the job came after the request. If more than the limit stand
-- on their own, so many of them are deleted and nothing else: it is to be called again, and the last call is the moment of the
-- cancellation.
--
-- ARGV: 1 name, 2 now, 3 how many occurrences of each kind to delete at most, 4 the span of versions that came after the
--   request, see superseded
-- Returns 1 "superseded", or whether there was anything: "found" or nothing, 2 how many occurrences were not held, 3 how many were,
--   4 whether to call again, 5 the revision of which some were counted and are yet to be deleted, if any
local name, now, limit = ARGV[1], ARGV[2], ARGV[3]
local j = read_job(name)
if j and superseded(j, ARGV[4]) then return {'superseded', 0, 0, 0, ''} end

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
