#!lua flags=no-writes,allow-oom
-- Lists pending occurrences in the order of their ids: those of a revision, then the standalone ones of a name.
--
-- ARGV: 1 name, 2 revision or nothing, 3 the id after which to begin, 4 the greatest number of each kind, 5 whether to
--   count all
-- Returns 1 the number of all, if that was asked for, else 0; 2... of each its id, line, attempts, error and dueAt
local name, revision, after = ARGV[1], ARGV[2], ARGV[3]
local result = {0}
local function list(index, from, first, last)
  if ARGV[5] == '1' then result[1] = result[1] + redis.call('ZLEXCOUNT', index, first, last) end
  for _, entry in ipairs(redis.call('ZRANGEBYLEX', index, from, last, 'LIMIT', 0, ARGV[4])) do
    local id = id_of(entry)
    local line = redis.call('HGET', occurrences, id)
    local lane = lane_of(line)
    if index == members and read_owner(line) ~= revision then -- it belongs to that revision by its mark
      local _, as = read_mark(id)
      line = inherited(line, revision, code_of(line), as)
    end
    result[#result + 1] = {id, line, redis.call('HGET', attempts, id) or '', redis.call('HGET', errors, id) or '',
      redis.call('ZSCORE', pending .. lane, id)}
  end
end
if revision ~= '' then
  list(members, '(' .. member(revision, after), first_member(revision), last_member(revision))
end
list(own, '(' .. owned(name, after), first_owned(name), last_owned(name))
return result
