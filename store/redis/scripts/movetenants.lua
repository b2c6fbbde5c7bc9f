#!lua flags=allow-oom
-- Turns the tenants of formats before 4 into records. They were a sorted set with one entry each: the name, a NUL,
-- firstSeen, a space and the settings. Each is moved once, however many replicas run this, and existing records stay.
--
-- KEYS: 1 entries, 2 expiry, 3 the key of the tenants
-- ARGV: 1 the greatest number of tenants
-- Returns how many were moved
local function insert(name, body)
  if redis.call('ZLEXCOUNT', KEYS[1], '[' .. name .. '\0', '(' .. name .. '\1') == 0 then
    redis.call('ZADD', KEYS[1], 0, name .. '\0format-3 0 ' .. body)
  end
end
local found = redis.call('ZRANGE', KEYS[3], 0, ARGV[1] - 1)
for _, entry in ipairs(found) do
  local tenant, seen, settings = string.match(entry, '^([^%z]*)%z(%S+) (.*)$')
  insert('tenants\0' .. tenant, '{"firstSeen":' .. seen .. '}')
  if settings ~= '' then insert('tenant-settings\0' .. tenant, settings) end
  redis.call('ZREM', KEYS[3], entry)
end
return #found
