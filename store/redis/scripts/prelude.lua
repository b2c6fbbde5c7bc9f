-- The beginning of every script: the keys of one shard, and the functions that read and write its documents.
--
-- KEYS are the keys of the shard, in the order below. A script touches no others except the lanes' sorted sets, which
-- have the pending occurrences by due time. Such a set's key is `pending` followed by the lane: the tenant, and if
-- there is a priority, an exclamation mark and its code. The key `pending` itself never exists. So while a cluster is
-- moving the shard's slot, every script lacks a key, and the server refuses it before it begins rather than half way.
--
-- `heads` has each lane that is not empty, with the due time of its first occurrence as the score. Older versions kept
-- the set `lanes` of lanes that are not empty instead. Lanes found there are taken over, see adopt.lua.
--
-- A job's state is text: its revision, pausedAt, cursor, version, createdAt, updatedAt, expiresAt, expandAt, the token
-- of the claim to expand it, its counts, and callback type, separated by spaces. The counts are missed, planned, failed
-- and the trouble, separated by colons; zeros and an empty trouble may be omitted at the end. An occurrence's line is
-- its revision, a space, its job's name, a NUL, its priority's code (a letter or nothing), and its timestamp, position,
-- step and subscriber, separated by spaces. Its attempts are their number, scheduledAt and the token. Times are Unix
-- milliseconds, 0 for none. A name is the tenant, a NUL and the key. The fields that a claim needs come first, where
-- they are found without a pattern, since patterns are slow.
--
-- A job that replaces another one may carry over some of its occurrences: they become its own. If there are very many,
-- most are marked before the replacement. For each marked occurrence, `heirs` has under its id the revision that is to
-- have it, a space, and its future priority code, position, step and subscriber; and under the job's name, the revision
-- that is to replace the job, a space, and the job's own. `members` has an entry of the occurrence for each of the two
-- revisions. A mark has no effect until its revision is the job's. From then on the occurrence belongs to that
-- revision, whatever its line says.
local jobs, targets, schedules, names, expiry, expansion,
  occurrences, attempts, errors, pending, lanes, members, own,
  dead, deadByTenant, deadByJob, heirs, heads = unpack(KEYS)

-- Whether a text comes before another. Lua compares texts by the server's locale, but the indexes sort by bytes.
local function before(a, b)
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return y ~= nil and x < y end
  end
  return #a < #b
end

local function read_state(text)
  local j = {}
  j.revision, j.paused, j.cursor, j.version, j.created, j.updated, j.expires, j.expand, j.token, j.counts, j.type =
    string.match(text, '^(%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (.*)$')
  return j
end

local function read_job(name)
  local text = redis.call('HGET', jobs, name)
  return text and read_state(text) or nil
end

-- Whether a condition holds for a job, or for none: "absent", "present", "versions" and the versions, "from", a version
-- and a cursor, or nothing, which always holds.
local function holds(condition, present)
  local kind, rest = string.match(condition, '^(%a*)(.*)$')
  if kind == 'absent' then return not present end
  if kind == 'present' then return present end
  if kind == 'from' then return present and rest == ' ' .. present.version .. ' ' .. present.cursor end
  return kind ~= 'versions' or present and string.find(rest .. ' ', ' ' .. present.version .. ' ', 1, true)
end

-- Adds to a job's counts. A planned count of zero means unknown, and stays zero. Of two troubles the later one is kept.
local function add_counts(j, missed, planned, failed, trouble)
  local m, p, f, t = string.match(j.counts, '^(%d+):?(%d*):?(%d*):?(%S*)$')
  p = tonumber(p) or 0
  if p > 0 then p = p + planned end
  if before(t, trouble) then t = trouble end
  j.counts = string.format('%d:%d:%d:%s', m + missed, p, (tonumber(f) or 0) + failed, t)
end

-- The revision, pausedAt and cursor in a job's state.
local function read_stamps(text)
  return string.match(text, '^(%S*) (%S*) (%S*)')
end

local function write_state(j)
  return table.concat({j.revision, j.paused, j.cursor, j.version, j.created, j.updated, j.expires, j.expand, j.token,
    j.counts, j.type}, ' ')
end

local function write_job(name, j)
  redis.call('HSET', jobs, name, write_state(j))
  redis.call('ZADD', expiry, j.expires, name)
  if j.expand == '0' then
    redis.call('ZREM', expansion, name)
  else
    redis.call('ZADD', expansion, j.expand, name)
  end
end

local function delete_job(name)
  redis.call('HDEL', heirs, name)
  redis.call('HDEL', jobs, name)
  redis.call('HDEL', targets, name)
  redis.call('HDEL', schedules, name)
  redis.call('ZREM', names, name)
  redis.call('ZREM', expiry, name)
  redis.call('ZREM', expansion, name)
end

-- The revision and job's name of an occurrence, and where in its line the rest begins; nothing if that is damaged.
local function read_owner(line)
  local space = string.find(line, ' ', 1, true)
  local tenant = space and string.find(line, '\0', space, true)
  local key = tenant and string.find(line, '\0', tenant + 1, true)
  if not key then return nil end
  return string.sub(line, 1, space - 1), string.sub(line, space + 1, key - 1), key + 1
end

-- The revision, timestamp and job's name of an occurrence.
local function read_line(line)
  local revision, name, rest = read_owner(line)
  local at = rest and string.match(line, '^%a?(%d+)', rest)
  if not at then return nil end
  return revision, at, name
end

-- The tenant in a name.
local function tenant_of(name) return string.match(name, '^[^%z]*') end

-- The lane of an occurrence; nothing if its line is damaged.
local function lane_of(line)
  local _, name, rest = read_owner(line or '')
  if not rest then return '' end
  local code = string.match(line, '^%a', rest)
  return code and tenant_of(name) .. '!' .. code or tenant_of(name)
end

-- Groups ids by the lanes in their lines.
local function by_lane(ids, lines)
  local divided = {}
  for i, id in ipairs(ids) do
    local lane = lane_of(lines[i])
    local some = divided[lane] or {}
    divided[lane], some[#some + 1] = some, id
  end
  return divided
end

-- The due times of pending occurrences, by their ids. The ids are grouped by lane.
local function read_due(divided)
  local due = {}
  for lane, some in pairs(divided) do
    for i, at in ipairs(redis.call('ZMSCORE', pending .. lane, unpack(some))) do due[some[i]] = at end
  end
  return due
end

-- The number of attempts, scheduledAt and token of an occurrence; 0, 0 and nothing if none are stored.
local function read_attempts(text)
  if not text then return 0, '0', '' end
  local n, scheduled, token = string.match(text, '^(%d+) (%d+) (%S*)$')
  return tonumber(n), scheduled, token
end

local function write_attempts(id, n, scheduled, token)
  if n == 0 and token == '' then
    redis.call('HDEL', attempts, id)
  else
    redis.call('HSET', attempts, id, n .. ' ' .. scheduled .. ' ' .. token)
  end
end

-- The entry by which the occurrences of a revision are found, and bounds of them all.
local function member(revision, id) return revision .. ':' .. id end
local function first_member(revision) return '[' .. revision .. ':' end
local function last_member(revision) return '(' .. revision .. ';' end

-- The same for the pending standalone occurrences of a name, and for its dead letters.
local function owned(name, id) return name .. '\0' .. id end
local function first_owned(name) return '[' .. name .. '\0' end
local function last_owned(name) return '(' .. name .. '\1' end

-- The id that such an entry ends with.
local function id_of(entry) return string.sub(entry, -26) end

-- The ids that entries end with.
local function ids_of(entries)
  local ids = {}
  for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
  return ids
end

-- Whether a job's version came after a request. The span has two versions with a space between: the job's version must
-- be later than the first and not later than the second. An empty span has no versions.
local function superseded(j, span)
  local after, last = string.match(span, '^(%S*) (%S*)$')
  return after and before(after, j.version) and not before(last, j.version)
end

-- The id of the first pending occurrence of a revision; nothing if there is none.
local function next_of(revision)
  local first = redis.call('ZRANGEBYLEX', members, first_member(revision), last_member(revision), 'LIMIT', 0, 1)[1]
  return first and id_of(first) or ''
end

-- Whether a job has anything left to fire.
local function live(j)
  return j.expand ~= '0' or (j.paused ~= '0' and j.cursor ~= '0') or next_of(j.revision) ~= ''
end

-- Calls a command that takes pairs, with those of a list, if there are any. It divides long lists, since the number of
-- arguments of a call is limited.
local function write(pairs, command, key, option)
  for from = 1, #pairs, 2000 do
    local to = math.min(from + 1999, #pairs)
    if option then
      redis.call(command, key, option, unpack(pairs, from, to))
    else
      redis.call(command, key, unpack(pairs, from, to))
    end
  end
end

-- Adds an occurrence's due time to the lists by lane, see enter and move.
local function add_due(to, lane, at, id)
  local due = to[lane]
  if not due then
    due = {}
    to[lane] = due
  end
  due[#due + 1], due[#due + 2] = at, id
end

-- Notes the due time of a lane's first occurrence. It must be called whenever that may have changed.
local function note_head(lane)
  local first = redis.call('ZRANGE', pending .. lane, 0, 0, 'WITHSCORES')[2]
  if first then
    redis.call('ZADD', heads, first, lane)
  else
    redis.call('ZREM', heads, lane)
  end
end

-- Makes occurrences pending, at the due times in the lists. Occurrences that are pending already keep their due times;
-- then the head of their lane may be too early until the next claim.
local function enter(lists)
  for lane, due in pairs(lists) do
    write(due, 'ZADD', pending .. lane, 'NX')
    local first = due[1]
    for i = 3, #due, 2 do
      if tonumber(due[i]) < tonumber(first) then first = due[i] end
    end
    redis.call('ZADD', heads, 'LT', first, lane)
  end
end

-- Changes pending occurrences' due times to those in the lists.
local function move(lists)
  for lane, due in pairs(lists) do
    write(due, 'ZADD', pending .. lane)
    note_head(lane)
  end
end

-- Removes occurrences from a lane: those from an index of a list on, or all. Returns how many were there.
local function remove(lane, ids, first)
  local removed = redis.call('ZREM', pending .. lane, unpack(ids, first))
  note_head(lane)
  return removed
end

-- Empty lists of occurrences to insert, see add and insert_all.
local function no_occurrences() return {lines = {}, due = {}, entries = {}} end

-- Adds a revision's occurrences from a range of ARGV: of each, its id, line, lane and dueAt.
local function add(to, revision, first, last)
  local lines, due, entries = to.lines, to.due, to.entries
  for i = first, last, 4 do
    local id, n = ARGV[i], #lines
    lines[n + 1], lines[n + 2] = id, ARGV[i + 1]
    add_due(due, ARGV[i + 2], ARGV[i + 3], id)
    entries[n + 1], entries[n + 2] = 0, member(revision, id)
  end
end

-- Inserts the added occurrences. Occurrences that are pending already keep their due times.
local function insert_all(added)
  write(added.lines, 'HSET', occurrences)
  enter(added.due)
  write(added.entries, 'ZADD', members)
end

-- Inserts a revision's occurrences from the rest of ARGV, see add, except those that exist: a repeated expansion may
-- have another priority, and an occurrence must not be in two lanes.
local function insert(revision, first)
  local ids, added = {}, no_occurrences()
  for i = first, #ARGV, 4 do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 then return end
  for k, there in ipairs(redis.call('HMGET', occurrences, unpack(ids))) do
    local i = first + 4 * (k - 1)
    if not there then add(added, revision, i, i + 3) end
  end
  insert_all(added)
end

-- The set of those occurrences that are held at now, and their number.
local function find_held(ids, now)
  local claimed, held, n = {}, {}, 0
  for i, state in ipairs(redis.call('HMGET', attempts, unpack(ids))) do
    local _, _, token = read_attempts(state)
    if token ~= '' then claimed[#claimed + 1] = ids[i] end
  end
  if #claimed == 0 then return held, 0 end
  for id, at in pairs(read_due(by_lane(claimed, redis.call('HMGET', occurrences, unpack(claimed))))) do
    if at and tonumber(at) > tonumber(now) then held[id], n = true, n + 1 end
  end
  return held, n
end

-- The revision and the rest of the mark of an occurrence or of a job; nothing if there is no mark.
local function read_mark(id)
  local mark = redis.call('HGET', heirs, id)
  if mark then return string.match(mark, '^(%S*) (.*)$') end
end

-- Whether there are any marks.
local marked_any
local function any_marks()
  if marked_any == nil then marked_any = redis.call('EXISTS', heirs) == 1 end
  return marked_any
end

-- Removes the marks of occurrences, and the entries in `members` for the marks' revisions.
local function unmark(ids)
  if not any_marks() then return end
  local marked, entries = {}, {}
  for i, mark in ipairs(redis.call('HMGET', heirs, unpack(ids))) do
    if mark then
      marked[#marked + 1] = ids[i]
      entries[#entries + 1] = member(string.match(mark, '^%S*'), ids[i])
    end
  end
  if #marked == 0 then return end
  redis.call('HDEL', heirs, unpack(marked))
  redis.call('ZREM', members, unpack(entries))
end

-- The line of an occurrence once a revision has it: with this priority code, and the other fields from a mark's text.
local function inherited(line, revision, code, as)
  local _, name, rest = read_owner(line)
  return revision .. ' ' .. name .. '\0' .. code .. string.match(line, '^%a?(%d+ )', rest) ..
    string.match(as, '^%a?(.*)$')
end

-- The priority code in a line.
local function code_of(line)
  local _, _, rest = read_owner(line)
  return string.match(line, '^%a?', rest)
end

-- Rewrites an occurrence that belongs to its job's present revision by its mark, so that its line says so. It stays
-- in its lane. Returns the new line, or nothing if the occurrence has no such mark.
local function adopt(id, line, j)
  local revision, as = read_mark(id)
  if not j or revision ~= j.revision then return nil end
  local new = inherited(line, revision, code_of(line), as)
  redis.call('HSET', occurrences, id, new)
  redis.call('HDEL', heirs, id)
  redis.call('ZREM', members, member(read_owner(line), id))
  return new
end

-- Moves pending occurrences to another revision. Each one's text has its new fields as a mark has them, see `heirs`.
-- Held occurrences stay in their lanes, so that the replicas that hold them find them.
local function carry(ids, lines, texts, revision, held)
  local leaving, entering, written, gone, entries = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local line = lines[i]
    local code, present = string.match(texts[i], '^%a?'), code_of(line)
    if held[id] then code = present end
    local new = inherited(line, revision, code, texts[i])
    if code ~= present then
      local from, to = lane_of(line), lane_of(new)
      add_due(entering, to, redis.call('ZSCORE', pending .. from, id), id)
      remove(from, {id})
    end
    written[2 * i - 1], written[2 * i] = id, new
    gone[i] = member(read_owner(line), id)
    entries[2 * i - 1], entries[2 * i] = 0, member(revision, id)
  end
  if #gone == 0 then return end
  enter(entering)
  unmark(ids)
  redis.call('ZREM', members, unpack(gone))
  write(entries, 'ZADD', members)
  write(written, 'HSET', occurrences)
end

-- Returns those occurrences with entries of a revision that are to be deleted with it, and their lines. It carries
-- over those that the job's present revision inherits. An occurrence of another revision, with a mark for this one,
-- stays and loses the mark, unless this revision was a job's.
local function divide(ids, revision, was, held)
  local lines = redis.call('HMGET', occurrences, unpack(ids))
  if not any_marks() then return ids, lines end
  local doomed, doomedLines, entries = {}, {}, {}
  local inherits, inheritsLines, texts, heir = {}, {}, {}, nil
  for i, id in ipairs(ids) do
    local of, name = read_owner(lines[i] or '')
    local marked, as = read_mark(id)
    if of == revision and heir == nil then
      local j = read_job(name)
      heir = j and j.revision or ''
    end
    if of == revision and marked and marked == heir then
      local n = #inherits + 1
      inherits[n], inheritsLines[n], texts[n] = id, lines[i], as
    elseif of == revision or was then
      doomed[#doomed + 1], doomedLines[#doomedLines + 1] = id, lines[i]
      if of then entries[#entries + 1] = member(of, id) end
    elseif marked == revision then
      redis.call('HDEL', heirs, id)
    end
  end
  carry(inherits, inheritsLines, texts, heir, held)
  if #doomed > 0 then unmark(doomed) end
  if #entries > 0 then redis.call('ZREM', members, unpack(entries)) end
  return doomed, doomedLines
end

-- Deletes pending occurrences, except their entries in the indexes `members` and `own`.
local function delete_all(ids, lines)
  if #ids == 0 then return end
  for lane, some in pairs(by_lane(ids, lines)) do remove(lane, some) end
  redis.call('HDEL', occurrences, unpack(ids))
  redis.call('HDEL', attempts, unpack(ids))
  redis.call('HDEL', errors, unpack(ids))
end

-- Up to limit entries of a revision.
local function entries_of(revision, limit)
  return redis.call('ZRANGEBYLEX', members, first_member(revision), last_member(revision), 'LIMIT', 0, limit)
end

-- Deletes the pending occurrences that have these entries, at most limit, of a revision that no job has, see divide.
-- Was tells whether a job had it. Returns how many were not held at now, how many were held, and whether there may be
-- more.
local function drop(revision, was, now, limit, entries)
  if #entries == 0 then return 0, 0, 0 end
  local ids = ids_of(entries)
  local held, n = find_held(ids, now)
  redis.call('ZREM', members, unpack(entries))
  delete_all(divide(ids, revision, was, held))
  return #ids - n, n, #entries == tonumber(limit) and 1 or 0
end

-- Counts the pending occurrences of a revision: how many are not held at now, and how many are held. It reads all of
-- them, in a sixth of the time that deleting them takes.
local function count(revision, now)
  local from, n, held = first_member(revision), 0, 0
  while true do
    local entries = redis.call('ZRANGEBYLEX', members, from, last_member(revision), 'LIMIT', 0, 1000)
    if #entries == 0 then return n - held, held end
    local _, some = find_held(ids_of(entries), now)
    n, held, from = n + #entries, held + some, '(' .. entries[#entries]
  end
end

-- Deletes one pending occurrence.
local function delete_pending(lane, id, revision, name)
  remove(lane, {id})
  redis.call('HDEL', occurrences, id)
  redis.call('HDEL', attempts, id)
  redis.call('HDEL', errors, id)
  if revision == '' then
    redis.call('ZREM', own, owned(name, id))
    redis.call('HDEL', targets, id)
  else
    redis.call('ZREM', members, member(revision, id))
    unmark({id})
  end
end

-- Adds a dead letter to its indexes.
local function add_dead(id, name, failed)
  redis.call('ZADD', dead, failed, id)
  redis.call('ZADD', deadByTenant, 0, owned(tenant_of(name), id))
  redis.call('ZADD', deadByJob, 0, owned(name, id))
end

-- Returns a function that reports whether an occurrence's job has the occurrence's revision, and a cursor that has
-- reached it. It is always true for a standalone occurrence. The function reads each job once.
local function matcher()
  local states = {}
  return function(revision, at, name)
    if not revision or revision == '' then return revision == '' end
    if states[name] == nil then states[name] = redis.call('HGET', jobs, name) or '' end
    local present, _, cursor = read_stamps(states[name])
    return present == revision and (cursor == '0' or tonumber(at) <= tonumber(cursor))
  end
end
