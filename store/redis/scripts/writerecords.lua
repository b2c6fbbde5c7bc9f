#!lua flags=allow-oom
-- Makes changes of records, one after the other. Records are few and small, and are written even when the server's
-- memory is full. So tenants can be paused, and replicas can report, on a full store too.
--
-- KEYS: 1 entries, 2 expiry, 3 a key that does not exist, see recordKeys in records.go
-- ARGV: of each change: 1 the record's name, 2 its new version, 3 an equals sign and its body, or nothing to delete it,
--   4 its expiry, 0 for never, 5 the condition: an equals sign and the version that it must have, a minus if it must
--   not exist, or nothing, 6 now
-- Returns of each change 1, or 0 if its condition does not hold
local answers = {}
for i = 1, #ARGV, 6 do
  local name, version, body, expires, condition, now = unpack(ARGV, i, i + 5)
  local entry = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. name .. '\0', '(' .. name .. '\1')[1]
  local present = ''
  if entry then
    local ends
    present, ends = string.match(entry, '^(%S+) (%S+) ', #name + 2)
    if ends ~= '0' and tonumber(ends) <= tonumber(now) then present = '' end
  end
  local holds = condition == '' or condition == '-' and present == '' or condition == '=' .. present
  local answer = 1
  if present == version or present == '' and body == '' then
    answer = 1 -- it was made before, or there is nothing to delete
  elseif not holds then
    answer = 0
  else
    local written = name .. '\0' .. version .. ' ' .. expires .. ' ' .. string.sub(body, 2)
    if entry then redis.call('ZREM', KEYS[1], entry) end
    redis.call('ZREM', KEYS[2], name)
    if body ~= '' then
      redis.call('ZADD', KEYS[1], 0, written)
      if expires ~= '0' then redis.call('ZADD', KEYS[2], expires, name) end
    end
  end
  answers[#answers + 1] = answer
end
return answers
