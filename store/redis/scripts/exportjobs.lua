#!lua flags=no-writes,allow-oom
-- Reads jobs in the order of their names, up to the first by which they are large enough.
--
-- ARGV: 1 the name after which they begin, or nothing, 2 how many at most, 3 how many bytes are enough
-- Returns of each its name, state, target and schedule
local page, size = {}, 0
for _, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local target, schedule = redis.call('HGET', targets, name), redis.call('HGET', schedules, name)
  page[#page + 1] = {name, redis.call('HGET', jobs, name), target, schedule}
  size = size + #(target or '') + #(schedule or '')
  if size >= tonumber(ARGV[3]) then break end
end
return page
