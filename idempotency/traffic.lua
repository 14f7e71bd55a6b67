-- Adds what a process counted to the present minute, or reads all minutes. See traffic.py.
--
-- KEYS[1]  the hash: <minute % slots> -> "<minute> <name>=<number> ..."
-- ARGV     slots
--          then name, number, name, number ...  -> the minute
--          or nothing                           -> {the minute, field, value, field, value ...}
--
-- The server's clock decides which minute it is. A slot of another minute is an old one, and is
-- overwritten, so that nothing has to be deleted.

local hash, slots = KEYS[1], tonumber(ARGV[1])
local minute = math.floor(redis.call('TIME')[1] / 60)

if #ARGV == 1 then
  local found = redis.call('HGETALL', hash)
  table.insert(found, 1, minute)
  return found
end

local slot = minute % slots
local counts = {}
local of, stored = string.match(redis.call('HGET', hash, slot) or '', '^(%d+) (.*)$')
if tonumber(of) == minute then
  for name, number in string.gmatch(stored, '(%S+)=(%d+)') do
    counts[name] = tonumber(number)
  end
end
for index = 2, #ARGV, 2 do
  counts[ARGV[index]] = (counts[ARGV[index]] or 0) + tonumber(ARGV[index + 1])
end
local pairs_of = {}
for name, number in pairs(counts) do
  pairs_of[#pairs_of + 1] = string.format('%s=%.0f', name, number)
end
redis.call('HSET', hash, slot, minute .. ' ' .. table.concat(pairs_of, ' '))
redis.call('EXPIRE', hash, slots * 60 * 2)
return minute
