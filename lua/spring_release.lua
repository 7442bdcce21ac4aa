-- Removes a lock's key, if it still belongs to the hold that asks, and publishes that.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  what the name of the key's channel begins with; empty or missing: publish nothing
-- ARGV[3]  one more channel to publish on; empty or missing: none
-- ARGV[4]  the command that removes a key; missing: UNLINK
--
-- Replies 0 when the key was not the hold's. When it was it is gone now, and the reply is 1 and the number of clients that
-- received the message on the key's channel.
--
-- A value of the same registry with a smaller number is a grant that came late, as in spring_obtain.lua. The registry asks
-- for this removal only when all holds of the path up to this one are over, so nobody uses it, and it is removed too.
local held = redis.call('GET', KEYS[1])
local mine = held == ARGV[1]
if not mine then
  local registry, number = string.match(ARGV[1], '^(.*:)(%d+)$')
  local other = nil
  if held and string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  if not other or other > tonumber(number) then
    return 0
  end
end
-- The server's ACL may forbid a user either command, but not both: who may not do the one can do the other.
local removal = ARGV[4] or 'UNLINK'
local removed = redis.pcall(removal, KEYS[1])
if type(removed) == 'table' and removed.err then
  redis.call(removal == 'UNLINK' and 'DEL' or 'UNLINK', KEYS[1])
end
-- To publish may be forbidden too; the lock is released all the same.
local received = 0
if (ARGV[2] or '') ~= '' then
  local reply = redis.pcall('PUBLISH', ARGV[2] .. KEYS[1], KEYS[1])
  if type(reply) == 'number' then
    received = reply
  end
end
if (ARGV[3] or '') ~= '' then
  redis.pcall('PUBLISH', ARGV[3], KEYS[1])
end
return mine and 1 + received or 0
