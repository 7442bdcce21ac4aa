-- Removes a lock's key, if it still belongs to the hold that asks, and publishes that.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  the command that removes a key: UNLINK or DEL
-- ARGV[3]  what the name of the key's channel begins with; empty: publish nothing
-- ARGV[4]  one more channel to publish on, or empty
--
-- Replies 0 when the key was not the hold's. When it was it is gone now, and the reply is 1 and the number of clients that
-- received the message on the key's channel.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- A user whom the server's ACL forbids UNLINK can still release.
local removed = redis.pcall(ARGV[2], KEYS[1])
if type(removed) == 'table' and removed.err then
  redis.call('DEL', KEYS[1])
end
-- To publish may be forbidden too; the lock is released all the same.
local received = 0
if ARGV[3] ~= '' then
  local reply = redis.pcall('PUBLISH', ARGV[3] .. KEYS[1], KEYS[1])
  if type(reply) == 'number' then
    received = reply
  end
end
if ARGV[4] ~= '' then
  redis.pcall('PUBLISH', ARGV[4], KEYS[1])
end
return 1 + received
