-- Tells whether a hold still has its lock, and changes nothing.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value, or its field; empty or missing: that of no hold
-- ARGV[2]  hash, where the key is one; empty or missing: it is a string
--
-- Replies 1 if so, 0 when the key is gone, -1 when the lock is another's.
if ARGV[2] == 'hash' then
  return redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 and 1 or -redis.call('EXISTS', KEYS[1])
end
local held, value = redis.call('GET', KEYS[1]), ARGV[1] or ''
return (held == value or held == value .. '+') and 1 or held and -1 or 0
