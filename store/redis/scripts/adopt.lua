#!lua flags=allow-oom
-- Notes the heads of lanes that an older version has recorded as not empty.
--
-- ARGV: 1 the greatest number of lanes
-- Returns the number of lanes
local found = redis.call('SPOP', lanes, ARGV[1])
for _, lane in ipairs(found) do note_head(lane) end
return #found
