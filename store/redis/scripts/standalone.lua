#!lua flags=no-writes,allow-oom
-- Lists names that have pending standalone occurrences. It reads one entry of each.
--
-- ARGV: 1 and 2 the bounds of the names, 3 the greatest number
-- Returns the names
local found, from = {}, ARGV[1]
while #found < tonumber(ARGV[3]) do
  local entry = redis.call('ZRANGEBYLEX', own, from, ARGV[2], 'LIMIT', 0, 1)[1]
  if not entry then break end
  local name = string.sub(entry, 1, -28)
  found[#found + 1] = name
  from = '(' .. name .. '\1'
end
return found
