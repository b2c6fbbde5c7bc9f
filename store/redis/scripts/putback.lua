#!lua flags=allow-oom
-- Puts back what a claim has set aside, or drops orphans. What has changed since, by a resumption or another claim, is left
-- as it is.
--
-- ARGV: 1 until when they were set aside, 2... of each its id, and when it is due again, or nothing to drop it
for i = 2, #ARGV, 2 do
  local id, due = ARGV[i], ARGV[i + 1]
  local score = redis.call('ZSCORE', pending, id)
  local _, _, token = read_attempts(redis.call('HGET', attempts, id))
  if score and tonumber(score) == tonumber(ARGV[1]) and token == '' then
    if due ~= '' then
      redis.call('ZADD', pending, due, id)
    else
      local revision, _, name = read_record(redis.call('HGET', occurrences, id) or '')
      local j = revision and read_job(name)
      if not revision then
        redis.call('ZREM', pending, id)
      elseif not j or j.revision ~= revision then
        delete_pending(id, revision, name)
      end
    end
  end
end
return 1
