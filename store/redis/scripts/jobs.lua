#!lua flags=no-writes,allow-oom
-- Lists jobs in the order of their names.
--
-- ARGV: 1 and 2 the bounds of the names, 3 how many at most
-- Returns of each its name, state, and whether it is live
local page = {}
for i, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])) do
  page[i] = {name, redis.call('HGET', jobs, name), live(read_job(name)) and 1 or 0}
end
return page
