-- Removes a lock in Redisson's format, if it still belongs to the hold that asks, and publishes that.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
--
-- Replies 0 when the lock was not the hold's. When it was it is gone now, and the reply is 1 and the number of clients that
-- received the message.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('DEL', KEYS[1])
local received = 0
if ARGV[2] ~= '' then -- to publish may be forbidden; the lock is released all the same
  local reply = redis.pcall('PUBLISH', ARGV[3], '0')
  if type(reply) == 'number' then
    received = reply
  end
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', ARGV[3], '0')
  end
end
return 1 + received
