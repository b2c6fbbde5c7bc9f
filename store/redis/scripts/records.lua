-- What every script begins with: the keys of one shard and how records are read and written.
--
-- KEYS are the keys of the shard, in the order below. A script touches no others but the lanes' sorted sets, of pending
-- occurrences by when they are due: their keys are that of `pending` with the lane after it, which is the tenant, and an
-- exclamation mark and the priority's code if there is a priority. The key `pending` itself never exists. So a cluster
-- that is moving the shard's slot lacks a key of every script, and refuses it before it has begun, never half way.
--
-- `heads` has each lane that is not empty, by when its first is due. `lanes` is what an older version kept in its place: the set of
-- the lanes that are not empty. What is found there was noted by one, and is taken over, see adopt.lua.
--
-- A job's state is text: its revision, pausedAt, cursor, version, createdAt, updatedAt, expiresAt, expandAt, the token of
-- the claim to expand it, missed, and callback type, with a space between. An occurrence's record is its revision, a space,
-- its job's name, a NUL, its priority's code, which is a letter or nothing, and its timestamp, position, step and subscriber,
-- with a space between. Its attempts are the number of them, scheduledAt and the token. Times are Unix milliseconds, 0 for
-- none. A name is the tenant, a NUL and the key. What a claim looks at comes first, where it is found without a pattern, since
-- patterns are slow.
local jobs, targets, schedules, names, expiry, expansion,
  occurrences, attempts, errors, pending, lanes, members, own,
  dead, deadByTenant, deadByJob, heads = unpack(KEYS)

local function read_state(text)
  local j = {}
  j.revision, j.paused, j.cursor, j.version, j.created, j.updated, j.expires, j.expand, j.token, j.missed, j.type =
    string.match(text, '^(%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (%S*) (.*)$')
  return j
end

local function read_job(name)
  local text = redis.call('HGET', jobs, name)
  return text and read_state(text) or nil
end

-- The revision, pausedAt and cursor in a job's state.
local function read_stamps(text)
  return string.match(text, '^(%S*) (%S*) (%S*)')
end

local function write_state(j)
  return table.concat({j.revision, j.paused, j.cursor, j.version, j.created, j.updated, j.expires, j.expand, j.token, j.missed,
    j.type}, ' ')
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
  redis.call('HDEL', jobs, name)
  redis.call('HDEL', targets, name)
  redis.call('HDEL', schedules, name)
  redis.call('ZREM', names, name)
  redis.call('ZREM', expiry, name)
  redis.call('ZREM', expansion, name)
end

-- The revision and job's name of an occurrence, and where in its record the rest begins; nothing if that is damaged.
local function read_owner(record)
  local space = string.find(record, ' ', 1, true)
  local tenant = space and string.find(record, '\0', space, true)
  local key = tenant and string.find(record, '\0', tenant + 1, true)
  if not key then return nil end
  return string.sub(record, 1, space - 1), string.sub(record, space + 1, key - 1), key + 1
end

-- The revision, timestamp and job's name of an occurrence.
local function read_record(record)
  local revision, name, rest = read_owner(record)
  local at = rest and string.match(record, '^%a?(%d+)', rest)
  if not at then return nil end
  return revision, at, name
end

-- The tenant in a name.
local function tenant_of(name) return string.match(name, '^[^%z]*') end

-- The lane of an occurrence; nothing if its record is damaged.
local function lane_of(record)
  local _, name, rest = read_owner(record or '')
  if not rest then return '' end
  local code = string.match(record, '^%a', rest)
  return code and tenant_of(name) .. '!' .. code or tenant_of(name)
end

-- Divides ids by the lanes that their records tell.
local function by_lane(ids, records)
  local divided = {}
  for i, id in ipairs(ids) do
    local lane = lane_of(records[i])
    local some = divided[lane] or {}
    divided[lane], some[#some + 1] = some, id
  end
  return divided
end

-- When pending occurrences are due, by their ids. They are given by lanes.
local function read_due(divided)
  local due = {}
  for lane, some in pairs(divided) do
    for i, at in ipairs(redis.call('ZMSCORE', pending .. lane, unpack(some))) do due[some[i]] = at end
  end
  return due
end

-- The number of attempts, scheduledAt and token of an occurrence, of which nothing may be stored.
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

-- The same of the pending occurrences of a name that stand on their own, and of its dead letters.
local function owned(name, id) return name .. '\0' .. id end
local function first_owned(name) return '[' .. name .. '\0' end
local function last_owned(name) return '(' .. name .. '\1' end

-- The id that such an entry ends with.
local function id_of(entry) return string.sub(entry, -26) end

-- Whether a job has anything left to fire.
local function live(j)
  return j.expand ~= '0' or (j.paused ~= '0' and j.cursor ~= '0') or
    #redis.call('ZRANGEBYLEX', members, first_member(j.revision), last_member(j.revision), 'LIMIT', 0, 1) > 0
end

-- Calls a command that takes pairs, with those of a list, if there are any. No call takes arguments without end.
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

-- Adds to lists by lanes that an occurrence is due at a time, see enter and move.
local function add_due(to, lane, at, id)
  local due = to[lane]
  if not due then
    due = {}
    to[lane] = due
  end
  due[#due + 1], due[#due + 2] = at, id
end

-- Notes when the first of a lane is due. It is called whenever that may have changed.
local function note_head(lane)
  local first = redis.call('ZRANGE', pending .. lane, 0, 0, 'WITHSCORES')[2]
  if first then
    redis.call('ZADD', heads, first, lane)
  else
    redis.call('ZREM', heads, lane)
  end
end

-- Makes occurrences pending, due as lists say. Those that are there already stay due when they are.
local function enter(lists)
  for lane, due in pairs(lists) do
    write(due, 'ZADD', pending .. lane, 'NX')
    note_head(lane)
  end
end

-- Makes pending occurrences due as lists say.
local function move(lists)
  for lane, due in pairs(lists) do
    write(due, 'ZADD', pending .. lane)
    note_head(lane)
  end
end

-- Removes occurrences from a lane. Returns how many were there.
local function remove(lane, ids)
  local removed = redis.call('ZREM', pending .. lane, unpack(ids))
  note_head(lane)
  return removed
end

-- Lists of the occurrences to insert, see add and insert_all.
local function no_occurrences() return {records = {}, due = {}, entries = {}} end

-- Adds the occurrences of a revision that ARGV has at some indexes: of each, its id, record, lane and dueAt.
local function add(to, revision, first, last)
  local records, due, entries = to.records, to.due, to.entries
  for i = first, last, 4 do
    local id, n = ARGV[i], #records
    records[n + 1], records[n + 2] = id, ARGV[i + 1]
    add_due(due, ARGV[i + 2], ARGV[i + 3], id)
    entries[n + 1], entries[n + 2] = 0, member(revision, id)
  end
end

-- Inserts what was added. Those that are there already stay due when they are.
local function insert_all(added)
  write(added.records, 'HSET', occurrences)
  enter(added.due)
  write(added.entries, 'ZADD', members)
end

-- Inserts the occurrences of a revision that ARGV has from the index first on, see add, but for those that are there: an
-- expansion that is done again may have another priority, and one occurrence must not be in two lanes.
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

-- Deletes what is pending under up to limit entries of an index, members or own. Returns how many of them were not held
-- at now, how many were, and whether there may be more.
local function drop(index, first, last, now, limit)
  local entries = redis.call('ZRANGEBYLEX', index, first, last, 'LIMIT', 0, limit)
  if #entries == 0 then return 0, 0, 0 end
  local ids, held = {}, 0
  for i, entry in ipairs(entries) do ids[i] = id_of(entry) end
  local states = redis.call('HMGET', attempts, unpack(ids))
  local divided = by_lane(ids, redis.call('HMGET', occurrences, unpack(ids)))
  local due = read_due(divided)
  for i, id in ipairs(ids) do
    local _, _, token = read_attempts(states[i])
    if token ~= '' and tonumber(due[id] or 0) > tonumber(now) then held = held + 1 end
  end
  for lane, some in pairs(divided) do remove(lane, some) end
  redis.call('ZREM', index, unpack(entries))
  redis.call('HDEL', occurrences, unpack(ids))
  redis.call('HDEL', attempts, unpack(ids))
  redis.call('HDEL', errors, unpack(ids))
  if index == own then redis.call('HDEL', targets, unpack(ids)) end
  return #ids - held, held, #entries == tonumber(limit) and 1 or 0
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
  end
end

-- Adds a dead letter to all that it is found by.
local function add_dead(id, name, failed)
  redis.call('ZADD', dead, failed, id)
  redis.call('ZADD', deadByTenant, 0, owned(tenant_of(name), id))
  redis.call('ZADD', deadByJob, 0, owned(name, id))
end

-- Returns a function that tells of an occurrence, by its record, whether its job has its revision and has come to it. What
-- stands on its own needs no job. It reads each job once.
local function matcher()
  local states = {}
  return function(revision, at, name)
    if not revision or revision == '' then return revision == '' end
    if states[name] == nil then states[name] = redis.call('HGET', jobs, name) or '' end
    local present, _, cursor = read_stamps(states[name])
    return present == revision and (cursor == '0' or tonumber(at) <= tonumber(cursor))
  end
end
