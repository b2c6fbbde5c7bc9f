#!lua flags=no-writes,allow-oom
-- Reads pending standalone occurrences and dead letters, by the job's name. The page ends with the one by which it
-- reaches a number of bytes. Both kinds are merged into one order, since either may become the other; its entry is the
-- same in both indexes.
--
-- ARGV: 1 the entry after which to begin, or nothing, 2 the greatest number, 3 the number of bytes
-- Returns 1 the last entry, or nothing if there are no more, 2... of each its id, line, attempts, error, dueAt or
--   nothing, failedAt or nothing, and target
local from, limit = ARGV[1] == '' and '-' or '(' .. ARGV[1], tonumber(ARGV[2])
local alive = redis.call('ZRANGEBYLEX', own, from, '+', 'LIMIT', 0, limit)
local buried = redis.call('ZRANGEBYLEX', deadByJob, from, '+', 'LIMIT', 0, limit)
local result, size, nextAlive, nextBuried = {''}, 0, 1, 1
for i = 1, #alive + #buried do
  local entry, other = alive[nextAlive], buried[nextBuried]
  if not entry or other and before(other, entry) then
    entry, nextBuried = other, nextBuried + 1
  else
    nextAlive = nextAlive + 1
  end
  local id = id_of(entry)
  local line, target = redis.call('HGET', occurrences, id) or '', redis.call('HGET', targets, id) or ''
  local due, failed = redis.call('ZSCORE', pending .. lane_of(line), id), redis.call('ZSCORE', dead, id)
  result[i + 1] = {id, line, redis.call('HGET', attempts, id) or '', redis.call('HGET', errors, id) or '',
    due or '', failed or '', target}
  size = size + #target
  if i == limit or size >= tonumber(ARGV[3]) then
    result[1] = entry
    break
  end
end
return result
