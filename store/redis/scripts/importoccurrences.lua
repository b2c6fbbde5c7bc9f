#!lua
-- Inserts occurrences as exported, except those that exist, those whose job has another revision, and those beyond
-- their job's cursor.
--
-- ARGV: of each occurrence: its id, line, attempts or nothing, error or nothing, dueAt or nothing, failedAt or
--   nothing, and the target of a standalone one or nothing
-- Returns how many were inserted
local inserted, entered = 0, {}
local fires = matcher()
for i = 1, #ARGV, 7 do
  local id, line, due, failed = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5]
  local revision, at, name = read_line(line)
  if fires(revision, at, name) and redis.call('HSETNX', occurrences, id, line) == 1 then
    inserted = inserted + 1
    if ARGV[i + 2] ~= '' then redis.call('HSET', attempts, id, ARGV[i + 2]) end
    if ARGV[i + 3] ~= '' then redis.call('HSET', errors, id, ARGV[i + 3]) end
    if revision == '' then redis.call('HSET', targets, id, ARGV[i + 6]) end
    if failed ~= '' then
      add_dead(id, name, failed)
    else
      add_due(entered, lane_of(line), due, id)
      if revision == '' then
        redis.call('ZADD', own, 0, owned(name, id))
      else
        redis.call('ZADD', members, 0, member(revision, id))
      end
    end
  end
end
enter(entered)
return inserted
