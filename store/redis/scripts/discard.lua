#!lua flags=allow-oom
-- Deletes a tenant's dead letters by id, or the first of all that failed up to a time.
--
-- ARGV: 1 tenant, 2... ids, also of other documents, which stay; or: 1 nothing, 2 the upper bound of failedAt, 3 the
--   greatest number
-- Returns how many were deleted
local tenant, ids, deleted = ARGV[1], {}, 0
if tenant == '' then
  ids = redis.call('ZRANGEBYSCORE', dead, '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
else
  for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
end
for _, id in ipairs(ids) do
  if tenant == '' or redis.call('ZSCORE', deadByTenant, owned(tenant, id)) then
    local _, name = read_owner(redis.call('HGET', occurrences, id))
    redis.call('ZREM', dead, id)
    redis.call('ZREM', deadByJob, owned(name, id))
    redis.call('ZREM', deadByTenant, owned(tenant_of(name), id))
    redis.call('HDEL', occurrences, id)
    redis.call('HDEL', targets, id)
    redis.call('HDEL', attempts, id)
    redis.call('HDEL', errors, id)
    deleted = deleted + 1
  end
end
return deleted
