-- Sets the lease of a lock anew, if its key still belongs to the hold that asks.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  the lease in milliseconds
--
-- Replies 1 when renewed, 0 when the key is not the hold's (any more).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
