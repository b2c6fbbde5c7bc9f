#!lua
-- Makes dead letters due, with no attempts used.
--
-- ARGV: 1 tenant, 2 now, 3... ids, also of other documents, which stay
-- Returns how many were dead letters of the tenant
local redriven, due = 0, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if redis.call('ZREM', deadByTenant, owned(ARGV[1], id)) == 1 then
    local line = redis.call('HGET', occurrences, id)
    local _, name = read_owner(line)
    redis.call('ZREM', dead, id)
    redis.call('ZREM', deadByJob, owned(name, id))
    redis.call('HDEL', attempts, id)
    redis.call('HDEL', errors, id)
    add_due(due, lane_of(line), ARGV[2], id)
    redis.call('ZADD', own, 0, owned(name, id))
    redriven = redriven + 1
  end
end
enter(due)
return redriven
