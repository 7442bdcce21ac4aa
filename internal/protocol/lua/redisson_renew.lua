-- Sets the lease of a lock in Redisson's format anew, if it still belongs to the hold that asks.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  is for read-write locks
-- ARGV[4]  the key of the fencing counter, from which the hold gets a token; empty or missing: it wants none
--
-- Replies 1, or the token, when renewed, 0 when the key is gone, -1 when the lock is another's.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
local counter = ARGV[4] or ''
-- include redisson_draw
-- include fence
local refused = fence()
if refused then
  return refused
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token or 1
