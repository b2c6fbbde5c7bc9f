#!lua flags=no-writes,allow-oom
-- Lists dead letters in the order of their ids.
--
-- ARGV: 1 "tenant" or "job", 2 the tenant or the job's name, 3 the id after which to begin, unless 7 is given, 4 the
--   greatest number to return, 5 the greatest number to read, 6 the prefix of the name, 7 the only id, or nothing,
--   8 whether to leave out the callbacks' data
-- Returns 1 the last id read, or nothing if there are no more, 2... of each dead letter its id, line, attempts,
--   error, failedAt and target
local index = ARGV[1] == 'job' and deadByJob or deadByTenant
local whose, limit, scan, prefix = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local entries
if ARGV[7] == '' then
  entries = redis.call('ZRANGEBYLEX', index, '(' .. owned(whose, ARGV[3]), last_owned(whose), 'LIMIT', 0, scan)
elseif redis.call('ZSCORE', index, owned(whose, ARGV[7])) then
  entries = {owned(whose, ARGV[7])}
else
  entries = {}
end
local result, last = {''}, ''
for _, entry in ipairs(entries) do
  if #result > limit then break end
  local id = id_of(entry)
  local line = redis.call('HGET', occurrences, id)
  local _, name = read_owner(line)
  if string.sub(name, 1, #prefix) == prefix then
    local target = redis.call('HGET', targets, id)
    if ARGV[8] == '1' then target = string.match(target, '^[^%z]*%z[^%z]*%z') end
    result[#result + 1] = {id, line, redis.call('HGET', attempts, id) or '', redis.call('HGET', errors, id) or '',
      redis.call('ZSCORE', dead, id), target}
  end
  last = id
end
if #result > limit or #entries == scan then result[1] = last end
return result
