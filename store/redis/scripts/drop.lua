#!lua flags=allow-oom
-- Deletes occurrences of a revision that is no job's any more.
--
-- ARGV: 1 revision, 2 now, 3 how many at most
-- Returns 1 how many of them were not held, 2 how many were, 3 whether there may be more
return {drop(members, first_member(ARGV[1]), last_member(ARGV[1]), ARGV[2], ARGV[3])}
