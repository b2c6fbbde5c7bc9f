#!lua flags=no-writes,allow-oom
-- Reads due times and targets of a lane's first pending occurrences that are due at a time or later.
--
-- ARGV: 1 lane, 2 the time, 3 the greatest number, at least 1
-- Returns 1 when they are due, in order, 2 the place of each one's target, 0 if its job is gone or was replaced, 3 the
--   targets: a job's once, however many of its occurrences there are
local found = redis.call('ZRANGEBYSCORE', pending .. ARGV[1], ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
if #found == 0 then return {{}, {}, {}} end
local ids, dues, places, owners, known = {}, {}, {}, {}, {}
for i = 1, #found, 2 do ids[#ids + 1], dues[#dues + 1] = found[i], found[i + 1] end
for i, line in ipairs(redis.call('HMGET', occurrences, unpack(ids))) do
  local revision, name = read_owner(line or '')
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
