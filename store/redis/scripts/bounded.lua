-- Begins a bounded script. The last of ARGV is the script's deadline by this server's clock, in Unix milliseconds. From
-- then on the script changes nothing and fails with LATE and the server's time. Before, it returns the server's time
-- and the script's own answer.
local latest = tonumber(table.remove(ARGV))
local seconds = redis.call('TIME')
local clock = seconds[1] * 1000 + math.floor(seconds[2] / 1000)
if clock >= latest then return redis.error_reply('LATE ' .. string.format('%.0f', clock)) end
local function change()
