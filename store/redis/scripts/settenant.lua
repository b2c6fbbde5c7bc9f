#!lua flags=allow-oom
-- Gives a tenant settings, and inserts it if it is not there. So it can be paused although the store is full.
--
-- KEYS: 1 the store's key of its tenants
-- ARGV: 1 name, 2 firstSeen, unless it is there, 3 settings
local name, seen = ARGV[1], ARGV[2]
local present = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. name .. '\0', '(' .. name .. '\1')[1]
if present then seen = string.match(present, '^%S+', #name + 2) end
local entry = name .. '\0' .. seen .. ' ' .. ARGV[3]
-- The key is never gone in between: a cluster that moves its slot would refuse the rest.
redis.call('ZADD', KEYS[1], 0, entry)
if present and present ~= entry then redis.call('ZREM', KEYS[1], present) end
return 1
