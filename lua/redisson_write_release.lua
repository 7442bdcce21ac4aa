-- Ends the hold that writes under a read-write lock in Redisson's format.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, less ':write'
-- ARGV[2]  the command to publish with, or empty
-- ARGV[3]  the lock's channel
--
-- Replies 0 when the hold was not there. When it was it is gone now, and the reply is 1 and the number of clients that
-- received a message: others may read now, because the same owner does or nobody has the lock any more.
local key = KEYS[1]
if redis.call('HDEL', key, ARGV[1] .. ':write') == 0 then
  return 0
end
if redis.call('HLEN', key) <= 1 then
  redis.call('DEL', key)
else
  redis.call('HSET', key, 'mode', 'read')
end
local received = 0
if ARGV[2] ~= '' then -- to publish may be forbidden; the lock is released all the same
  local reply = redis.pcall(ARGV[2], ARGV[3], '1')
  if type(reply) == 'number' then
    received = reply
  end
end
return 1 + received
