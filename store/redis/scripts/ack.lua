#!lua flags=allow-oom
-- Deletes occurrences that were delivered.
--
-- ARGV: of each its id and the claim's token
-- Returns how many were deleted
local ids, claims = {}, {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1], claims[#claims + 1] = ARGV[i], ARGV[i + 1]
end
local states = redis.call('HMGET', attempts, unpack(ids))
local records = redis.call('HMGET', occurrences, unpack(ids))
local gone, entries = {}, {}
for i, id in ipairs(ids) do
  local _, _, token = read_attempts(states[i])
  if token ~= '' and token == claims[i] then
    local revision, _, name = read_record(records[i])
    if revision == '' then
      delete_pending(id, revision, name)
    else
      gone[#gone + 1] = id
      entries[#entries + 1] = member(revision, id)
    end
  end
end
if #gone > 0 then
  redis.call('ZREM', pending, unpack(gone))
  redis.call('ZREM', members, unpack(entries))
  redis.call('HDEL', occurrences, unpack(gone))
  redis.call('HDEL', attempts, unpack(gone))
  redis.call('HDEL', errors, unpack(gone))
end
return #gone
