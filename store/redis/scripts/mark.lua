#!lua
-- Marks occurrences of a job that its replacement is to carry over. The marks take effect when a put replaces the job.
--
-- ARGV: 1 name, 2 the new revision, 3 "first" in the first call of a put, or nothing, 4... of each occurrence its id
--   and the text of its mark after the revision, see `heirs`
-- Returns 1, or 0 if there is no such job, or another put has begun to mark occurrences since
local name, revision = ARGV[1], ARGV[2]
local j = read_job(name)
if not j or j.revision == revision then return 0 end
local mark = revision .. ' ' .. j.revision
if ARGV[3] == 'first' then
  redis.call('HSET', heirs, name, mark)
elseif redis.call('HGET', heirs, name) ~= mark then
  return 0
end

local ids, some, marks, entries = {}, {}, {}, {}
for i = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
for i, line in ipairs(redis.call('HMGET', occurrences, unpack(ids))) do
  local of = read_owner(line or '')
  if of and of ~= '' and of ~= j.revision and adopt(ids[i], line, j) then of = j.revision end
  if of == j.revision then
    some[#some + 1] = ids[i]
    marks[#marks + 1], marks[#marks + 2] = ids[i], revision .. ' ' .. ARGV[2 * i + 3]
    entries[#entries + 1], entries[#entries + 2] = 0, member(revision, ids[i])
  end
end
if #some > 0 then unmark(some) end
write(marks, 'HSET', heirs)
write(entries, 'ZADD', members)
return 1
