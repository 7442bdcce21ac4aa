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
--
-- Where somebody receives the message, which is 1, another one follows, 0. To a client of Redisson, 1 means to wake the
-- threads that sleep at this moment. One that has just tried in vain and is about to sleep is not among them, and would
-- sleep until the lease that it saw is over. 0 wakes one more thread, and if none sleeps, the next one that is about to.
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
local function publish(command) -- which may be forbidden; the lock is released all the same
  local reply = redis.pcall(command, ARGV[3], '1')
  if type(reply) ~= 'number' then
    return 0
  end
  if reply > 0 then
    redis.pcall(command, ARGV[3], '0')
  end
  return reply
end
local received = 0
if ARGV[2] ~= '' then
  received = publish('PUBLISH')
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    publish('SPUBLISH')
  end
end
return 1 + received
