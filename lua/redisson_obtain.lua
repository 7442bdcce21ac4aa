-- Makes a hold the owner of a lock in Redisson's format, if nobody else holds it.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
--
-- Replies nil when granted, else the milliseconds that the holder's lease has left (-1: it has no end).
--
-- A field of the same registry with a smaller number is a grant whose reply was lost, and is taken over; a larger number
-- means that this very command is late.
local key, field = KEYS[1], ARGV[1]
if redis.call('HEXISTS', key, 'mode') == 1 then
  return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if redis.call('EXISTS', key) == 1 and redis.call('HEXISTS', key, field) == 0 then
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    local n = nil
    if string.sub(other, 1, #registry) == registry then
      n = tonumber(string.sub(other, #registry + 1))
    end
    if not n or n > tonumber(number) then
      return redis.call('PTTL', key)
    end
  end
  redis.call('DEL', key)
end
redis.call('HSET', key, field, '1')
local lease = redis.pcall('PEXPIRE', key, ARGV[2])
if type(lease) == 'table' then -- refused, by the user's permissions: a hash without a lease would stay for ever
  redis.call('DEL', key)
  return lease
end
return nil
