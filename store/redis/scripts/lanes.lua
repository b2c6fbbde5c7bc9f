-- Tells when the first of each lane of a shard is due.
--
-- KEYS: 1 the shard's lanes, 2 what the keys of their sets begin with
-- Returns of each lane its text and when its first is due
local found = {}
for _, lane in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  found[#found + 1] = lane
  found[#found + 1] = redis.call('ZRANGE', KEYS[2] .. lane, 0, 0, 'WITHSCORES')[2]
end
return found
