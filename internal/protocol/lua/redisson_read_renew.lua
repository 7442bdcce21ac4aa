-- Sets the lease of a hold that reads anew, if it is still there. While others have the lock too, its own lease never gets
-- shorter by that: they may read longer.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the name as it stands in derived keys
--
-- Replies 1 when renewed, -1 when others have the lock, 0 when nobody has, or the hold's lease is over: that other readers keep the lock
-- does not bring it back.
-- include effects
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
-- PEXPIRE, unlike SET, is allowed when the server is out of memory.
if redis.call('PEXPIRE', ARGV[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:1', ARGV[2]) == 0 then
  return 0
end
if redis.call('HLEN', KEYS[1]) == 2 or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then -- mutant: reading renewal ends others
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
