#!lua flags=allow-oom
-- Deletes occurrences of a revision that no job has, except those that belong to another revision, see divide.
--
-- ARGV: 1 revision, 2 now, 3 the greatest number, 4 the name of the job that was to have the revision, or nothing if a
--   job had it
-- Returns whether there may be more
if ARGV[4] ~= '' and read_mark(ARGV[4]) == ARGV[1] then redis.call('HDEL', heirs, ARGV[4]) end
local _, _, more = drop(ARGV[1], ARGV[4] == '', ARGV[2], ARGV[3], entries_of(ARGV[1], ARGV[3]))
return more
