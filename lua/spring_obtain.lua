-- Makes a hold the owner of a lock, if nobody else holds it.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
--
-- Replies nil when granted, else the milliseconds that the holder's lease has left (-1: it has no end).
--
-- A value of the same registry with a smaller number is a grant whose reply was lost: the registry only asks while
-- it has the path to itself, so nobody uses that hold, and this one takes over. A larger number can only mean that
-- this very command was delayed until after a later hold: it must not win.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  local registry, number = string.match(ARGV[1], '^(.*:)(%d+)$')
  local other = nil
  if string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  if not other or other > tonumber(number) then
    return redis.call('PTTL', KEYS[1])
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return nil
