-- As spring_obtain_ticket.lua, of a lock in Redisson's format.
--
-- KEYS[1]             the lock's name: a hash
-- ARGV[1] to ARGV[5]  as those of spring_obtain_ticket.lua
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
