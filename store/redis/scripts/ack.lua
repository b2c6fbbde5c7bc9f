#!lua flags=allow-oom
-- Deletes occurrences that were delivered.
--
-- ARGV: of each claim and lane: the claim's token, the lane, the number of occurrences that follow, and of each its
--   entry in `members`: the revision under which it was claimed, a colon and its id
-- Returns how many were deleted
local gone, entries, n = {}, {}, 0 -- n is the length of both
local from = 1
while from < #ARGV do
  local token, lane, last = ' ' .. ARGV[from], ARGV[from + 1], from + 2 + ARGV[from + 2]
  local ids, first = {}, n + 1
  for i = from + 3, last do ids[i - from - 2] = id_of(ARGV[i]) end
  for i, state in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    -- To search at the end of a text makes no other text.
    if state and token ~= ' ' and string.find(state, token, math.max(#state - #token + 1, 1), true) then
      local id, entry = ids[i], ARGV[from + 2 + i]
      if #entry == 27 then -- it has no revision
        local _, name = read_owner(redis.call('HGET', occurrences, id) or '')
        if name then delete_pending(lane, id, '', name) end -- otherwise the settlement came twice, and the occurrence is deleted
      else
        n = n + 1
        gone[n], entries[n] = id, entry
      end
    end
  end
  if n >= first and remove(lane, gone, first) <= n - first then -- some were carried over with another priority after the lease's end
    local some = {unpack(gone, first)}
    for at, moved in pairs(by_lane(some, redis.call('HMGET', occurrences, unpack(some)))) do remove(at, moved) end
  end
  from = last + 1
end
if n > 0 then
  if redis.call('ZREM', members, unpack(entries)) < n then -- some were carried over after their claim
    entries = {}
    for i, line in ipairs(redis.call('HMGET', occurrences, unpack(gone))) do
      entries[i] = member(read_owner(line or '') or '', gone[i])
    end
    redis.call('ZREM', members, unpack(entries))
  end
  unmark(gone)
  redis.call('HDEL', occurrences, unpack(gone))
  redis.call('HDEL', attempts, unpack(gone))
  if redis.call('EXISTS', errors) == 1 then redis.call('HDEL', errors, unpack(gone)) end
end
return n
