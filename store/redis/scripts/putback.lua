#!lua flags=allow-oom
-- Puts back occurrences that a claim has set aside, or drops orphans. It leaves those that a resume or another claim
-- has changed since.
--
-- ARGV: 1 the time until which they were set aside, 2... of each its lane, its id, when it is due again, or nothing to
--   drop it, and whether to put it back only if its job is still paused
local stopped = {} -- whether jobs are paused, by name
local function is_paused(name)
  if stopped[name] == nil then
    local j = read_job(name)
    stopped[name] = j ~= nil and j.paused ~= '0'
  end
  return stopped[name]
end

local again = {}
for i = 2, #ARGV, 4 do
  local lane, id, due = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local score = redis.call('ZSCORE', pending .. lane, id)
  local _, _, token = read_attempts(redis.call('HGET', attempts, id))
  if score and tonumber(score) == tonumber(ARGV[1]) and token == '' then
    local line = redis.call('HGET', occurrences, id) or ''
    local revision, name = read_owner(line)
    if due ~= '' then
      -- A resumption may have left it due at that very time.
      if ARGV[i + 3] == '0' or is_paused(name) then add_due(again, lane, due, id) end
    else
      local j = revision and read_job(name)
      if not revision then
        remove(lane, {id})
      elseif not j or j.revision ~= revision and not adopt(id, line, j) then
        delete_pending(lane, id, revision, name)
      end
    end
  end
end
move(again)
return 1
