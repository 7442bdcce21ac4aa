-- Tells who holds a plain lock, and changes nothing.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  hash, where the lock is one; empty or missing: it is a string
--
-- Replies the holder as it is in the key: its value without the mark, or its field; nil when the lock is free.
if ARGV[1] ~= 'hash' then
  local held = redis.call('GET', KEYS[1])
  return held and string.match(held, '^(.*:%d+)%+$') or held
end
local fields = redis.call('HKEYS', KEYS[1])
for _, field in ipairs(fields) do
  if field == 'mode' then
    return redis.error_reply('WRONGTYPE the key is a read-write lock')
  end
end
return fields[1] or false
