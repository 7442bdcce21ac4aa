-- Removes a lock's key, if it still belongs to the hold that asks.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  the command that removes a key: UNLINK or DEL
--
-- Replies 1 when the key was the hold's and is gone now, 0 when it was not.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- A user whom the server's ACL forbids UNLINK can still release.
local removed = redis.pcall(ARGV[2], KEYS[1])
if type(removed) == 'table' and removed.err then
  redis.call('DEL', KEYS[1])
end
return 1
