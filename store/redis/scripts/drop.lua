#!lua flags=allow-oom
-- Deletes occurrences of a revision that is no job's, but for those that another has, see divide.
--
-- ARGV: 1 revision, 2 now, 3 how many at most, 4 the name of the job whose revision it was to be, or nothing if it was
-- Returns whether there may be more
if ARGV[4] ~= '' and read_mark(ARGV[4]) == ARGV[1] then redis.call('HDEL', heirs, ARGV[4]) end
local _, _, more = drop(ARGV[1], ARGV[4] == '', ARGV[2], ARGV[3], entries_of(ARGV[1], ARGV[3]))
return more
