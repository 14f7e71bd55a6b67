-- The retry budget of one dependency, shared by many processes. See budget.py for the rule.
--
-- KEYS[1]  the dependency's hash
-- ARGV     policy as JSON: window (seconds), floor, numerator, denominator (of the ratio)
--          'credit'                 -> 1
--          'spend', '0' | '1' hedge -> {granted, second}
--          'refund', second         -> 1
--
-- Field budget:<second % window>: "<second> <first attempts> <spent>".

local policy, command, argument = cjson.decode(ARGV[1]), ARGV[2], ARGV[3]

local function field(at)
  return 'budget:' .. at % policy.window
end

-- The counts of one second. A bucket of another second is an old one.
local function read(text, at)
  local of, first, spent = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if tonumber(of) ~= at then
    return 0, 0
  end
  return tonumber(first), tonumber(spent)
end

local function change(at, by_first, by_spent)
  local first, spent = read(redis.call('HGET', hash, field(at)), at)
  local text = string.format('%.0f %.0f %.0f', at, first + by_first, math.max(0, spent + by_spent))
  redis.call('HSET', hash, field(at), text)
end

local function totals()
  local names = {}
  for age = 0, policy.window - 1 do
    names[#names + 1] = field(second - age)
  end
  local buckets, first, spent = get(names), 0, 0
  for age = 0, policy.window - 1 do
    local more_first, more_spent = read(buckets[age + 1], second - age)
    first, spent = first + more_first, spent + more_spent
  end
  return first, spent
end

if command == 'credit' then
  change(second, 1, 0)
  return 1
end

if command == 'refund' then
  local at = tonumber(argument)
  if at > second - policy.window then
    change(at, 0, -1)
  end
  return 1
end

local first, spent = totals()
local above_floor = argument == '1' or spent >= policy.floor
if above_floor and (spent + 1) * policy.denominator > first * policy.numerator then
  return {0, second}
end
change(second, 0, 1)
return {1, second}
