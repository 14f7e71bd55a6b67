-- The circuit breaker of one operation, shared by many processes. See breaker.py for the rules.
--
-- KEYS[1]  the dependency's hash
-- ARGV     operation, policy as JSON (times in microseconds)
--          'admit'                                    -> {admitted, generation, probe, wait, ...}
--          'settle', generation, probe, outcome, slow, draw from U(0, 1)
--                                                     -> {1, generation, 0, 0, ...}
--          both end with the old and the new state
--
-- Fields of the operation: <operation>:state and so on, <operation>:window:<second % window>
-- "<second> <calls> <failed> <slow>", <operation>:leases "<probe>=<end> ...".

local operation, policy, command = ARGV[1], cjson.decode(ARGV[2]), ARGV[3]

local function name(field)
  return operation .. ':' .. field
end

local stored = get({name('state'), name('generation'), name('openings'), name('open_until'),
  name('probed_well'), name('probes'), name('leases')})
local state = stored[1] or 'closed'
local before = state
-- Begins with the time: what was admitted before the hash was lost is then of an older generation.
local generation = tonumber(stored[2]) or now
local openings = tonumber(stored[3]) or 0
local open_until = tonumber(stored[4]) or 0
local probed_well = tonumber(stored[5]) or 0
local probes = tonumber(stored[6]) or 0
local leases, held = {}, 0
for probe, ends in string.gmatch(stored[7] or '', '(%d+)=(%d+)') do
  if tonumber(ends) > now then
    leases[probe], held = ends, held + 1
  end
end

local function window_field(at)
  return name('window:' .. at % policy.window)
end

local function change(new)
  state, generation, leases = new, generation + 1, {}
  for slot = 0, policy.window - 1 do
    redis.call('HDEL', hash, window_field(slot))
  end
end

local function open(draw)
  local nominal = math.min(policy.open_cap, policy.open_for * 2 ^ math.min(openings, 64))
  open_until = now + math.floor(nominal * (1 + policy.open_jitter * (2 * draw - 1)))
  openings = openings + 1
  change('open')
end

local function save()
  local list = {}
  for probe, ends in pairs(leases) do
    list[#list + 1] = probe .. '=' .. ends
  end
  redis.call('HSET', hash, name('state'), state, name('generation'), whole(generation),
    name('openings'), whole(openings), name('open_until'), whole(open_until),
    name('probed_well'), whole(probed_well), name('probes'), whole(probes),
    name('leases'), table.concat(list, ' '))
end

local function reply(admitted, probe, wait)
  save()
  return {admitted, generation, probe, wait, before, state}
end

local function admit()
  if state == 'open' and now >= open_until then
    probed_well = 0
    change('half_open')
  end
  if state == 'open' then
    return reply(0, 0, open_until - now)
  end
  if state == 'closed' then
    return reply(1, 0, 0)
  end
  if held >= math.min(policy.concurrent_probes, policy.permits - probed_well) then
    return reply(0, 0, policy.soon)
  end
  probes = probes + 1
  leases[whole(probes)] = whole(now + policy.lease)
  return reply(1, probes, 0)
end

-- Adds one call to this second and returns the sums of the window.
local function count(failed, slow)
  local names = {}
  for age = 0, policy.window - 1 do
    names[#names + 1] = window_field(second - age)
  end
  local buckets, sums = get(names), {1, failed, slow}
  local here = {1, failed, slow}
  for age = 0, policy.window - 1 do
    local at, calls, bad, slowly = string.match(buckets[age + 1] or '', '^(%d+) (%d+) (%d+) (%d+)$')
    if tonumber(at) == second - age then
      local counts = {calls, bad, slowly}
      for kind = 1, 3 do
        sums[kind] = sums[kind] + counts[kind]
        if age == 0 then
          here[kind] = here[kind] + counts[kind]
        end
      end
    end
  end
  redis.call('HSET', hash, window_field(second),
    string.format('%.0f %.0f %.0f %.0f', second, here[1], here[2], here[3]))
  return sums[1], sums[2], sums[3]
end

local function judge_probe(probe, outcome, slow, draw)
  if not leases[probe] then
    return
  end
  leases[probe] = nil
  if outcome == 'neutral' then
    return
  end
  if outcome == 'failure' or slow == 1 then
    open(draw)
    return
  end
  probed_well = probed_well + 1
  if probed_well >= policy.permits then
    openings = 0
    change('closed')
  end
end

local function settle(of, probe, outcome, slow, draw)
  if of ~= generation then
    return reply(1, 0, 0)
  end
  if state == 'half_open' then
    judge_probe(probe, outcome, slow, draw)
  elseif outcome ~= 'neutral' then
    local calls, failed, dragged = count(outcome == 'failure' and 1 or 0, slow)
    local failing = failed * policy.failure_denominator >= calls * policy.failure_numerator
    local dragging = dragged * policy.slow_denominator >= calls * policy.slow_numerator
    if calls >= policy.minimum_calls and (failing or dragging) then
      open(draw)
    end
  end
  return reply(1, 0, 0)
end

if command == 'admit' then
  return admit()
end
return settle(tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]))
