-- Begins a script whose effect must not come late: beyond the last of ARGV, a time by this server's clock, it changes nothing.
-- Else it returns the time by this server's clock, and what the script returns.
local latest = tonumber(table.remove(ARGV))
local seconds = redis.call('TIME')
local clock = seconds[1] * 1000 + math.floor(seconds[2] / 1000)
if clock >= latest then return redis.error_reply('LATE ' .. string.format('%.0f', clock)) end
local function change()
