-- Ends the hold that writes under a read-write lock in Redisson's format.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, less ':write'
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  the name as it stands in derived keys
--
-- Replies 0 when the hold was not there. When it was it is gone now, and the reply is 1 and the number of clients that
-- received a message: others may read now, because the same owner does or nobody has the lock any more.
local key = KEYS[1]
if redis.call('HDEL', key, ARGV[1] .. ':write') == 0 then
  return 0
end
-- When the same owner reads the lock lives on, as long as that lease does.
local longest = 0
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  for n = 1, tonumber(fields[i + 1]) or 0 do
    longest = math.max(longest, redis.call('PTTL', ARGV[4] .. ':' .. fields[i] .. ':rwlock_timeout:' .. n))
  end
end
if longest > 0 then
  redis.call('HSET', key, 'mode', 'read')
  redis.call('PEXPIRE', key, longest)
else
  redis.call('DEL', key)
end
local received = 0
if ARGV[2] ~= '' then -- to publish may be forbidden; the lock is released all the same
  local reply = redis.pcall('PUBLISH', ARGV[3], '1')
  if type(reply) == 'number' then
    received = reply
  end
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', ARGV[3], '1')
  end
end
return 1 + received
