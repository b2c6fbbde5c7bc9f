#!lua flags=allow-oom
-- Deletes expired jobs that are not live, the longest expired first, and postpones the expiry of the others.
--
-- ARGV: 1 now, 2 the greatest number to read, 3 the new expiry of live jobs
-- Returns 1 how many were deleted, 2 how many were read
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
