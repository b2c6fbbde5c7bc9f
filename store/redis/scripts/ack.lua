#!lua flags=allow-oom
-- Deletes occurrences that were delivered.
--
-- ARGV: of each claim and tenant the claim's token, the tenant, how many occurrences follow, and of each its revision, a
--   colon and its id, as the members have it
-- Returns how many were deleted
local gone, entries = {}, {}
local from = 1
while from < #ARGV do
  local token, tenant, last = ' ' .. ARGV[from], ARGV[from + 1], from + 2 + ARGV[from + 2]
  local ids, some = {}, {}
  for i = from + 3, last do ids[#ids + 1] = id_of(ARGV[i]) end
  for i, state in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    if state and token ~= ' ' and string.sub(state, -#token) == token then
      local id, entry = ids[i], ARGV[from + 2 + i]
      if #entry == 27 then -- it has no revision
        local record = redis.call('HGET', occurrences, id)
        local _, name = read_owner(record)
        delete_pending(lane_of(record), id, '', name)
      else
        some[#some + 1] = id
        gone[#gone + 1] = id
        entries[#entries + 1] = entry
      end
    end
  end
  -- Most have no priority, so that their lane is the tenant. Records are read only for others.
  if #some > 0 and remove(tenant, some) < #some then
    for lane, ids in pairs(by_lane(some, redis.call('HMGET', occurrences, unpack(some)))) do remove(lane, ids) end
  end
  from = last + 1
end
if #gone > 0 then
  redis.call('ZREM', members, unpack(entries))
  redis.call('HDEL', occurrences, unpack(gone))
  redis.call('HDEL', attempts, unpack(gone))
  if redis.call('EXISTS', errors) == 1 then redis.call('HDEL', errors, unpack(gone)) end
end
return #gone
