#!lua flags=no-writes,allow-oom
-- Lists jobs in the order of their names.
--
-- ARGV: 1 and 2 the bounds of the names, 3 how many at most
-- Returns of each its name, state, and the id of its first pending occurrence, if any
local page = {}
for i, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local state = redis.call('HGET', jobs, name)
  page[i] = {name, state, next_of((read_stamps(state)))}
end
return page
