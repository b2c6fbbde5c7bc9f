-- Lists a shard's lanes whose first occurrence is due after a place and up to a time, in the order of that time and the
-- lane. First it takes over the lanes that a running older version has recorded, as adopt.lua does.
--
-- KEYS: 1 the shard's heads, 2 its lanes, 3 the prefix of the keys of the lanes' sorted sets
-- ARGV: 1 the place's time, 2 its lane, or nothing to begin with the time, 3 the last time, 4 the greatest number
-- Returns of each lane its text, and when its first occurrence is due
local heads, lanes, pending = unpack(KEYS)
for _, lane in ipairs(redis.call('SPOP', lanes, 100)) do
  local first = redis.call('ZRANGE', pending .. lane, 0, 0, 'WITHSCORES')[2]
  if first then redis.call('ZADD', heads, first, lane) end
end

-- Whether a text sorts after another by its bytes, as in a sorted set. Lua goes by the server's locale.
local function after(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

local first = redis.call('ZCOUNT', heads, '-inf', '(' .. ARGV[1])
if ARGV[2] ~= '' then
  local last = redis.call('ZCOUNT', heads, '-inf', ARGV[1])
  while first < last do
    local middle = math.floor((first + last) / 2)
    if after(redis.call('ZRANGE', heads, middle, middle)[1], ARGV[2]) then last = middle else first = middle + 1 end
  end
end
local found = redis.call('ZRANGE', heads, first, first + ARGV[4] - 1, 'WITHSCORES')
if ARGV[3] == '+inf' then return found end
for i = #found, 2, -2 do
  if tonumber(found[i]) <= tonumber(ARGV[3]) then break end
  found[i], found[i - 1] = nil, nil
end
return found
