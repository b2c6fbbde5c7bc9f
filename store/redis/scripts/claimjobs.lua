#!lua flags=allow-oom
-- Claims jobs for expansion, the longest due first.
--
-- ARGV: 1 now, 2 the greatest number of jobs, 3 the lease's end, 4 token
-- Returns of each job its name, when it was due, its state, options and schedule
local claimed = {}
local due = redis.call('ZRANGEBYSCORE', expansion, '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for i = 1, #due, 2 do
  local name = due[i]
  local j = read_job(name)
  j.expand, j.token = ARGV[3], ARGV[4]
  write_job(name, j)
  claimed[#claimed + 1] = {name, due[i + 1], redis.call('HGET', jobs, name),
    string.match(redis.call('HGET', targets, name), '^[^%z]*%z([^%z]*)%z'), redis.call('HGET', schedules, name)}
end
return claimed
