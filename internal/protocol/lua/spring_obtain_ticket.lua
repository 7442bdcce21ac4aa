-- Has a hold own a lock for which others waited a moment ago, or wait in its queue. When it waits the reply is "<any> <place>": 1 when
-- there are tickets in front, else 0, and its place. Where more is to be done it is as spring_obtain.lua: others wait for a free lock,
-- the holder's value has no mark, a hold of this registry has it, there is no queue any more, or a token is wanted.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the registry's prefix
-- ARGV[4]  S on a cluster
-- ARGV[5]  the key of the fencing counter; empty or missing: no token is wanted
-- include effects
local key, value, lease, prefix, sharded, counter = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'S', ARGV[5] or ''
local held = redis.call('GET', key)
if held then -- mutant: key taken in passing
  local registry = string.match(value, '^(.*:)')
  if string.sub(held, -1) == '+' and string.find(held, registry, 1, true) ~= 1 then
    -- include names
    -- include ticket
  end
elseif counter == '' then
  -- include names
  local first = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES') -- the first two are no tickets, see serve.lua
  if not first[5] and not first.err then
    local time = redis.pcall('TIME')
    if time[1] and time[1] * 1000 + math.floor(time[2] / 1000) >= -(first[2] or 0) then -- else a window is open
      redis.call('SET', key, value .. '+', 'PX', lease)
      return nil
    end
  end
end
local how, place, older, zeros = 'queue', '', '', ''
-- include spring_claim
