#!lua flags=allow-oom
-- Settles one claim by another outcome than an ack.
--
-- ARGV: 1 id, 2 the claim's token, 3 "retry", "release", "bury" or "miss", 4 when it is due again or has failed,
--   5 error or nothing, 6 the earliest expiry of its job, 7 the target to bury it with, 8 the trouble that its job
--   keeps
-- Returns whether the claim was still held
local id, outcome, at, failure = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local n, _, token = read_attempts(redis.call('HGET', attempts, id))
if token == '' or token ~= ARGV[2] then return 0 end
local line = redis.call('HGET', occurrences, id)
local revision, name = read_owner(line or '')
if not revision then return 0 end -- the next claim finds that it is damaged
local lane = lane_of(line)
local j = revision ~= '' and read_job(name) or nil
if j and j.revision ~= revision then
  line = adopt(id, line, j) or line
  revision = read_owner(line)
end

if outcome == 'bury' then
  remove(lane, {id})
  if revision == '' then
    redis.call('ZREM', own, owned(name, id))
  else
    redis.call('ZREM', members, member(revision, id))
    unmark({id})
    redis.call('HSET', occurrences, id, (string.gsub(line, '^%S*', '', 1)))
  end
  redis.call('HSET', targets, id, ARGV[7])
  redis.call('HSET', errors, id, failure)
  write_attempts(id, n, '0', '')
  add_dead(id, name, at)
  if j and revision ~= '' and j.revision == revision then
    add_counts(j, 0, 0, 1, ARGV[8])
    write_job(name, j)
  end
  return 1
end

if outcome == 'miss' then
  delete_pending(lane, id, revision, name)
else
  move({[lane] = {at, id}})
  write_attempts(id, outcome == 'release' and math.max(n - 1, 0) or n, '0', '')
  if failure ~= '' then
    redis.call('HSET', errors, id, failure)
  elseif outcome == 'retry' then
    redis.call('HDEL', errors, id)
  end
end
if revision == '' then return 1 end
if not j or j.revision ~= revision then return 1 end
if outcome == 'miss' then
  add_counts(j, 1, 0, 0, ARGV[8])
elseif tonumber(j.expires) < tonumber(ARGV[6]) then
  j.expires = ARGV[6]
else
  return 1
end
write_job(name, j)
return 1
