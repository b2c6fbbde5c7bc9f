#!lua flags=no-writes,allow-oom
-- Reads the pending occurrences of jobs, by revision, except orphans and those beyond their job's cursor.
--
-- ARGV: 1 the entry after which to begin, or nothing, 2 how many entries to read
-- Returns 1 the last entry read, or nothing if there are no more, 2... of each occurrence its id, line, attempts,
--   error and dueAt
local entries = redis.call('ZRANGEBYLEX', members, ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'LIMIT', 0, ARGV[2])
if #entries == 0 then return {''} end
local ids = {}
for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
local lines = redis.call('HMGET', occurrences, unpack(ids))
local states = redis.call('HMGET', attempts, unpack(ids))
local failures = redis.call('HMGET', errors, unpack(ids))
local due = read_due(by_lane(ids, lines))
local result = {#entries == tonumber(ARGV[2]) and entries[#entries] or ''}
local fires = matcher()
for i, id in ipairs(ids) do
  local line, of = lines[i] or '', string.sub(entries[i], 1, -28)
  if read_owner(line) ~= of then -- it belongs to that revision by its mark, or not at all
    local revision, as = read_mark(id)
    line = revision == of and line ~= '' and inherited(line, of, code_of(line), as) or ''
  end
  if due[id] and fires(read_line(line)) then
    result[#result + 1] = {id, line, states[i] or '', failures[i] or '', due[id]}
  end
end
return result
