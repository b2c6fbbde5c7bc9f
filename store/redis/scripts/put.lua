#!lua
-- Creates or replaces jobs whose conditions hold, each with the last of its occurrences, and begins to delete the
-- replaced revisions' occurrences. It gathers the writes of all jobs, for one call to each key: a call costs more than
-- its work.
--
-- ARGV: 1 how many occurrences to delete in all, apart from a few of each job: a job that replaces more than the rest
--   of these needs a script of its own, which deletes that many and counts the others; then of each job, of distinct
--   names: 1 name, 2 the condition, see holds, 3 the span of versions that came after the put, see superseded,
--   4 revision, 5 createdAt, 6 updatedAt, 7 expiresAt, 8 cursor, 9 expandAt, 10 counts, 11 callback type, 12 target, 13 schedule, 14 whether to ignore the
--   present job's pause and creation time, 15 now, 16 the number of occurrences that follow, 17 the number of
--   carried-over ones that follow those, and if some were marked beforehand, also a space, the number of occurrences
--   inserted beforehand, a space and the number of all carried-over ones, 18... the occurrences, see add, and of each
--   carried-over one its id and the text of its mark, see `heirs`
-- Returns of each job that was not just created: its place among the jobs; "ok", "precondition", "superseded", or
--   "alone" if it needs a script of its own; the replaced revision, how many of its occurrences were held, whether
--   there may be more to delete, since when the job is paused, and how many occurrences were carried over
local budget, few = tonumber(ARGV[1]), 10

local starts, jobNames = {}, {}
local from = 2
while from <= #ARGV do
  starts[#starts + 1], jobNames[#jobNames + 1] = from, ARGV[from]
  from = from + 17 + 4 * ARGV[from + 15] + 2 * string.match(ARGV[from + 16], '^%d+')
end

local replacedEntries = {} -- the replaced revisions' entries, by the index of ARGV at which the job begins

-- Returns the reason why the job that begins at an index of ARGV may not be put, or nil.
local function obstacle(at, name, present)
  if present and ARGV[at + 2] ~= '' and superseded(present, ARGV[at + 2]) then return 'superseded' end
  if ARGV[at + 1] ~= '' and not holds(ARGV[at + 1], present) then return 'precondition' end
  local revision = ARGV[at + 3]
  if not present or present.revision == revision then return nil end
  if string.find(ARGV[at + 16], ' ', 1, true) then
    local heir, of = read_mark(name) -- if these differ, another put has marked occurrences, or replaced the job
    if heir ~= revision or of ~= present.revision then return 'precondition' end
  end
  if #jobNames == 1 then return nil end
  local most = math.max(budget, few)
  local entries = entries_of(present.revision, most + 1)
  if #entries > most then return 'alone' end
  budget, replacedEntries[at] = budget - #entries, entries
end

local answers, replaced = {}, {}
local created, states, expiries, expansions, jobTargets, jobSchedules = {}, {}, {}, {}, {}, {}
local added = no_occurrences()
local function pair(list, a, b) list[#list + 1], list[#list + 2] = a, b end

for place, text in ipairs(redis.call('HMGET', jobs, unpack(jobNames))) do
  local at, name = starts[place], jobNames[place]
  local present, revision = text and read_state(text), ARGV[at + 3]
  local why = obstacle(at, name, present)
  if why then
    answers[#answers + 1] = {place, why}
  else
    local j = {revision = revision, version = revision,
      created = ARGV[at + 4], updated = ARGV[at + 5], expires = ARGV[at + 6], paused = '0',
      cursor = ARGV[at + 7], expand = ARGV[at + 8], token = '', counts = ARGV[at + 9], type = ARGV[at + 10]}
    if present then
      if ARGV[at + 13] == '0' then j.created, j.paused = present.created, present.paused end
      if j.paused ~= '0' then j.expand = '0' end
      if j.expand == '0' and present.expand ~= '0' then redis.call('ZREM', expansion, name) end
      local answer = {place, 'ok', '', 0, 0, j.paused, 0}
      answers[#answers + 1] = answer
      if present.revision ~= revision then
        answer[3] = present.revision
        replaced[#replaced + 1] = answer
      end
    else
      pair(created, 0, name)
    end
    pair(states, name, write_state(j))
    pair(expiries, j.expires, name)
    if j.expand ~= '0' then pair(expansions, j.expand, name) end
    pair(jobTargets, name, ARGV[at + 11])
    pair(jobSchedules, name, ARGV[at + 12])
    add(added, revision, at + 17, at + 16 + 4 * ARGV[at + 15])
  end
end

write(created, 'ZADD', names)
write(states, 'HSET', jobs)
write(expiries, 'ZADD', expiry)
write(expansions, 'ZADD', expansion)
write(jobTargets, 'HSET', targets)
write(jobSchedules, 'HSET', schedules)

-- Carries over a job's occurrences from its predecessor. Returns how many it has carried over, how many of those were
-- held, and how many the put names.
local function carry_over(old, at)
  local n, before, all = string.match(ARGV[at + 16], '^(%d+) ?(%d*) ?(%d*)$')
  if all == '' then all = n end
  local revision, carried = ARGV[at + 3], 0
  if before ~= '' then
    carried = redis.call('ZLEXCOUNT', members, first_member(revision), last_member(revision)) - before
  end
  if n == '0' then return carried, 0, all end
  local first, ids, texts = at + 17 + 4 * ARGV[at + 15], {}, {}
  for i = 1, tonumber(n) do ids[i], texts[i] = ARGV[first + 2 * i - 2], ARGV[first + 2 * i - 1] end
  local some, lines, as = {}, {}, {}
  for i, line in ipairs(redis.call('HMGET', occurrences, unpack(ids))) do
    local of = read_owner(line or '')
    if of and (of == old or of ~= '' and read_mark(ids[i]) == old) then
      some[#some + 1], lines[#lines + 1], as[#as + 1] = ids[i], line, texts[i]
    end
  end
  if #some == 0 then return carried, 0, all end
  local held, count = find_held(some, ARGV[at + 14])
  carry(some, lines, as, revision, held)
  return carried + #some, count, all
end

for _, answer in ipairs(replaced) do
  local at, old, held, more, all = starts[answer[1]], answer[3], nil, nil, nil
  answer[7], answer[4], all = carry_over(old, at)
  if answer[7] < tonumber(all) then -- the others were settled before, so the new job does not count them
    local name = jobNames[answer[1]]
    local j = read_job(name)
    add_counts(j, 0, answer[7] - all, 0, '')
    redis.call('HSET', jobs, name, write_state(j))
  end
  local entries = replacedEntries[at]
  if not entries or answer[7] > 0 then entries = entries_of(old, ARGV[1]) end
  _, held, more = drop(old, true, ARGV[at + 14], ARGV[1], entries)
  answer[4], answer[5] = answer[4] + held, more
  if more == 1 then
    _, held = count(old, ARGV[at + 14])
    answer[4] = answer[4] + held
  end
end
insert_all(added)
if #replaced > 0 and any_marks() then
  for _, answer in ipairs(replaced) do redis.call('HDEL', heirs, jobNames[answer[1]]) end
end
return answers
