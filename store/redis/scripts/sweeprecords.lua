#!lua flags=allow-oom
-- Deletes expired records, the longest expired first.
--
-- KEYS: 1 entries, 2 expiry, 3 a key that does not exist
-- ARGV: 1 now, 2 the greatest number
-- Returns how many were deleted
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, name in ipairs(expired) do
  local entry = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. name .. '\0', '(' .. name .. '\1')[1]
  if entry then redis.call('ZREM', KEYS[1], entry) end
  redis.call('ZREM', KEYS[2], name)
end
return #expired
