#!lua
-- Inserts tenants, but for those that are there.
--
-- KEYS: 1 the store's key of its tenants
-- ARGV: of each its name, firstSeen and settings
-- Returns how many were not there
local inserted = 0
for i = 1, #ARGV, 3 do
  local name = ARGV[i]
  if redis.call('ZLEXCOUNT', KEYS[1], '[' .. name .. '\0', '(' .. name .. '\1') == 0 then
    inserted = inserted + redis.call('ZADD', KEYS[1], 0, name .. '\0' .. ARGV[i + 1] .. ' ' .. ARGV[i + 2])
  end
end
return inserted
