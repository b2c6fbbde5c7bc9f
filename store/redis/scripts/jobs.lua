#!lua flags=no-writes,allow-oom
-- Lists jobs in the order of their names.
--
-- ARGV: 1 and 2 the bounds of the names, 3 the greatest number, 4 whether to read whole jobs
-- Returns of each job its name, state, and the id of its first pending occurrence, if any; and of a whole job its
--   target and schedule too
local page = {}
for i, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  local state = redis.call('HGET', jobs, name)
  local row = {name, state, next_of((read_stamps(state)))}
  if ARGV[4] == '1' then
    row[4], row[5] = redis.call('HGET', targets, name), redis.call('HGET', schedules, name)
  end
  page[i] = row
end
return page
