#!lua flags=allow-oom
-- Pauses a job, unless it is paused. Without expandAt it is not found for expansion, and without the token an expansion
-- under way comes to nothing.
--
-- ARGV: 1 name, 2 the version from then on, 3 now
-- Returns whether there is such a job
local j = read_job(ARGV[1])
if not j then return 0 end
if j.paused == '0' then
  j.paused, j.version, j.updated, j.expand, j.token = ARGV[3], ARGV[2], ARGV[3], '0', ''
  write_job(ARGV[1], j)
end
return 1
