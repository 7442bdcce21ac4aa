-- Tells whether a hold still has its lock, and changes nothing.
--
-- KEYS[1]  the lock's key: a string in Spring's format, else a hash
-- ARGV[1]  the hold's value; or its field
--
-- Replies 1 if so, else 0.
local kind = redis.call('TYPE', KEYS[1])
kind = kind.ok or kind
if kind == 'string' then
  return redis.call('GET', KEYS[1]) == ARGV[1] and 1 or 0
end
return kind == 'hash' and redis.call('HEXISTS', KEYS[1], ARGV[1]) or 0
