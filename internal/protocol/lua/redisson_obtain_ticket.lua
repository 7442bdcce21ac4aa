-- Has a hold own a lock in Redisson's format for which others waited a moment ago, or wait in its queue. When it waits the reply is
-- "<any> <place>": 1 when there are tickets in front, else 0, and its place. Where more is to be done it is as redisson_obtain.lua.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the registry's prefix
-- ARGV[4]  S on a cluster
-- ARGV[5]  the key of the fencing counter; empty or missing: no token is wanted
-- include effects
local key, field, lease, prefix, sharded, counter = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'S', ARGV[5] or ''
local holders = redis.call('HKEYS', key)
if holders[1] and not holders[2] and holders[1] ~= 'mode' then
  local value, registry = field, string.match(field, '^(.*:)')
  if string.find(holders[1], registry, 1, true) ~= 1 then -- whether it is Redisson's does not show
    -- include names
    -- include ticket
  end
end
local how, place, older, zeros = 'enqueue', '', '', ''
-- include redisson_claim
