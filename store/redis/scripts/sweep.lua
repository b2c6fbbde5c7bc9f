#!lua flags=allow-oom
-- Deletes expired jobs that are not live, the longest expired first. The others are looked at again later.
--
-- ARGV: 1 now, 2 how many to look at, 3 when to look again
-- Returns 1 how many were deleted, 2 how many were looked at
local expired = redis.call('ZRANGEBYSCORE', expiry, '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
local deleted = 0
for _, name in ipairs(expired) do
  local j = read_job(name)
  if live(j) then
    j.expires = ARGV[3]
    write_job(name, j)
  else
    delete_job(name)
    deleted = deleted + 1
  end
end
return {deleted, #expired}
