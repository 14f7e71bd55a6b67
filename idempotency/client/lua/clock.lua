-- Put in front of breaker.lua and budget.lua: the hash of one dependency, and the server's time.

local hash = KEYS[1]
-- Seconds without a call after which the hash is forgotten: longer than any window or open period.
local KEEP = 7200

-- Lua writes large numbers as 1.7e+15.
local function whole(number)
  return string.format('%.0f', number)
end

local function get(names)
  return redis.call('HMGET', hash, unpack(names))
end

-- Microseconds, the sum of the forward steps of the server's clock: where that is set back, nothing
-- expires late.
local function tell_time()
  local time = redis.call('TIME')
  local raw = time[1] * 1000000 + time[2]
  local seen = get({'clock', 'shift'})
  local last, shift = tonumber(seen[1]) or raw, tonumber(seen[2]) or 0
  if raw < last then
    shift = shift + last - raw
  end
  redis.call('HSET', hash, 'clock', whole(raw), 'shift', whole(shift))
  redis.call('EXPIRE', hash, KEEP)
  return raw + shift
end

local now = tell_time()
local second = math.floor(now / 1000000)
