#!lua flags=allow-oom
-- Notes the heads of lanes that an older version has noted as not empty.
--
-- ARGV: 1 of how many lanes at most
-- Returns of how many
local found = redis.call('SPOP', lanes, ARGV[1])
for _, lane in ipairs(found) do note_head(lane) end
return #found
