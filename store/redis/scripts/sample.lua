#!lua flags=no-writes,allow-oom
-- Tells of the first pending occurrences of a lane that become due at some time or later, when that is and what they call.
--
-- ARGV: 1 lane, 2 the time, 3 how many at most, which is at least 1
-- Returns 1 when they are due, in order, 2 the place of each one's target, 0 for those whose job is gone or another, 3 the
--   targets: a job's once, however many it has
local found = redis.call('ZRANGEBYSCORE', pending .. ARGV[1], ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
if #found == 0 then return {{}, {}, {}} end
local ids, dues, places, owners, known = {}, {}, {}, {}, {}
for i = 1, #found, 2 do ids[#ids + 1], dues[#dues + 1] = found[i], found[i + 1] end
for i, record in ipairs(redis.call('HMGET', occurrences, unpack(ids))) do
  local revision, name = read_owner(record or '')
  local owner = revision == '' and ids[i] or name
  local state = revision and revision ~= '' and redis.call('HGET', jobs, name)
  if revision == '' or state and read_stamps(state) == revision then
    if not known[owner] then
      owners[#owners + 1] = owner
      known[owner] = #owners
    end
    places[i] = known[owner]
  else
    places[i] = 0
  end
end
return {dues, places, #owners > 0 and redis.call('HMGET', targets, unpack(owners)) or {}}
