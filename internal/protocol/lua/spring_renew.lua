-- Sets the lease of a lock anew, if its key still belongs to the hold that asks.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the key of the fencing counter, from which the hold gets a token; empty or missing: it wants none
--
-- Replies 1, or the token, when renewed, 0 when the key is gone, -1 when it is another's.
-- include effects
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] and held ~= ARGV[1] .. '+' then
  return held and -1 or 0
end
local counter = ARGV[3] or ''
-- include draw
-- include fence
local refused = fence()
if refused then
  return refused
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token or 1
