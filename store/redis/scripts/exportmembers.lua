#!lua flags=no-writes,allow-oom
-- Reads the pending occurrences of jobs, by revision, except orphans and those beyond their job's cursor.
--
-- ARGV: 1 the entry after which to begin, or nothing, 2 how many entries to read
-- Returns 1 the last entry read, or nothing if there are no more, 2... of each occurrence its id, record, attempts,
--   error and dueAt
local entries = redis.call('ZRANGEBYLEX', members, ARGV[1] == '' and '-' or '(' .. ARGV[1], '+', 'LIMIT', 0, ARGV[2])
if #entries == 0 then return {''} end
local ids = {}
for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
local records = redis.call('HMGET', occurrences, unpack(ids))
local states = redis.call('HMGET', attempts, unpack(ids))
local failures = redis.call('HMGET', errors, unpack(ids))
local due = read_due(by_lane(ids, records))
local result = {#entries == tonumber(ARGV[2]) and entries[#entries] or ''}
local fires = matcher()
for i, id in ipairs(ids) do
  local record, of = records[i] or '', string.sub(entries[i], 1, -28)
  if read_owner(record) ~= of then -- it belongs to that revision by its mark, or not at all
    local revision, as = read_mark(id)
    record = revision == of and record ~= '' and inherited(record, of, code_of(record), as) or ''
  end
  if due[id] and fires(read_record(record)) then
    result[#result + 1] = {id, record, states[i] or '', failures[i] or '', due[id]}
  end
end
return result
