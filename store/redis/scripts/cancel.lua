#!lua flags=allow-oom
-- Deletes a job and what is pending of its name. If more than the limit stand on their own, so many of them are deleted
-- and nothing else: it is to be called again, and the last call is the moment of the cancellation.
--
-- ARGV: 1 name, 2 now, 3 how many occurrences of each kind to delete at most
-- Returns 1 whether there was anything, 2 how many occurrences were not held, 3 how many were, 4 whether to call again,
--   5 the revision whose occurrences are yet to be dropped, if any may be
local name, now, limit = ARGV[1], ARGV[2], ARGV[3]
local cancelled, held, more = drop(own, first_owned(name), last_owned(name), now, limit)
local found = cancelled + held > 0 and 1 or 0
if more == 1 then return {1, cancelled, held, 1, ''} end
local j = read_job(name)
if not j then return {found, cancelled, held, 0, ''} end
delete_job(name)
local c, h, left = drop(members, first_member(j.revision), last_member(j.revision), now, limit)
return {1, cancelled + c, held + h, 0, left == 1 and j.revision or ''}
