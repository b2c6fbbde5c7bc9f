#!lua
-- Inserts a job's next occurrences, if the claim to expand it still stands. Only the last call of an expansion moves
-- the cursor: until then the new occurrences lie beyond it and do not fire.
--
-- ARGV: 1 name, 2 revision, 3 the cursor when it was claimed, 4 the claim's token, 5 "last" or nothing, 6 the new
--   cursor, 7 expandAt (both 0 if the schedule has ended), 8 expiresAt or nothing, 9 the number of missed occurrences,
--   10 the number of planned ones, 11 the trouble, 12... occurrences, see insert
-- Returns whether the claim still stood
local name = ARGV[1]
local j = read_job(name)
if not j or j.revision ~= ARGV[2] or j.cursor ~= ARGV[3] or j.token == '' or j.token ~= ARGV[4] then return 0 end
insert(j.revision, 12)
if ARGV[5] == 'last' then
  j.cursor, j.expand, j.token = ARGV[6], ARGV[7], ''
  add_counts(j, ARGV[9], ARGV[10], 0, ARGV[11])
  if ARGV[8] ~= '' then j.expires = ARGV[8] end
  write_job(name, j)
end
return 1
