#!lua flags=no-writes,allow-oom
-- Reads jobs in the order of their names. The page ends with the job by which it reaches a number of bytes.
--
-- ARGV: 1 the name after which to begin, or nothing, 2 the greatest number of jobs, 3 the number of bytes
-- Returns of each job its name, state, target and schedule
local page, size, from = {}, 0, ARGV[1] == '' and '-' or '(' .. ARGV[1]
for _, name in ipairs(redis.call('ZRANGEBYLEX', names, from, '+', 'LIMIT', 0, ARGV[2])) do
  local target, schedule = redis.call('HGET', targets, name), redis.call('HGET', schedules, name)
  page[#page + 1] = {name, redis.call('HGET', jobs, name), target, schedule}
  size = size + #(target or '') + #(schedule or '')
  if size >= tonumber(ARGV[3]) then break end
end
return page
