#!lua flags=allow-oom
-- Pauses a job, unless it is paused. It clears expandAt, so that the job is not expanded, and the token, so that an
-- expansion under way has no effect.
--
-- ARGV: 1 name, 2 its new version, 3 now
-- Returns whether there is such a job
local j = read_job(ARGV[1])
if not j then return 0 end
if j.paused == '0' then
  j.paused, j.version, j.updated, j.expand, j.token = ARGV[3], ARGV[2], ARGV[3], '0', ''
  write_job(ARGV[1], j)
end
return 1
