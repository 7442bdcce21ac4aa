-- Sets the lease of the hold that writes anew, if it is still there. While the same owner also reads, the lock's lease never
-- gets shorter by that: it may read longer.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, less ':write'
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  is for readers
-- ARGV[4]  the key of the fencing counter, from which the hold gets a token; empty or missing: it wants none
--
-- Replies 1, or the token, when renewed, 0 when nobody has the lock, -1 when others have.
-- include effects
if redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
local counter = ARGV[4] or ''
-- include draw
-- include fence
local refused = fence()
if refused then
  return refused
end
if redis.call('HLEN', KEYS[1]) == 2 or redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then -- mutant: writing renewal ends reading
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return token or 1
