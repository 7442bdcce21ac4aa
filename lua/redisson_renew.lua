-- Sets the lease of a lock in Redisson's format anew, if it still belongs to the hold that asks.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in milliseconds
--
-- Replies 1 when renewed, 0 when the lock is not the hold's (any more).
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
