-- Lets a hold read under a read-write lock in Redisson's format, if nobody else writes.
--
-- KEYS[1]  the lock's name: a hash of the mode, 'read' or 'write', and a field with a count per holder
-- ARGV[1]  the hold's field, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the name as it stands in derived keys. "<this>:<field>:rwlock_timeout:<n>" lives as long as the n-th lease of a
--          reader, so that the hash can be kept for as long as the longest one
-- ARGV[4]  the field of the hold with which the same owner writes already, less ':write'; or missing
--
-- Replies nil when granted, else the milliseconds that the lock has left (-1: it has no end).
local key, field = KEYS[1], ARGV[1]
local mode = redis.call('HGET', key, 'mode')
if not mode and redis.call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local left, lost = 0, false
if mode then
  left = redis.call('PTTL', key)
end
if mode == 'write' and (not ARGV[4] or redis.call('HEXISTS', key, ARGV[4] .. ':write') == 0) then
  -- A writer of the same registry with a smaller number is a grant whose reply was lost: the registry asks to read only
  -- while none of its own owners writes, but for the one above.
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    if other ~= 'mode' then
      local n = nil
      if string.sub(other, 1, #registry) == registry then
        n = tonumber(string.match(string.sub(other, #registry + 1), '^(%d+):write$') or '')
      end
      if not n or n > tonumber(number) then
        return left
      end
    end
  end
  mode, left, lost = false, 0, true
end
-- First what may be refused, because the user has no permission for that key or a cluster keeps it elsewhere: a hash that
-- is written and gets no lease would stay for ever.
local own = ARGV[3] .. ':' .. field .. ':rwlock_timeout:1'
redis.call('SET', own, '1', 'PX', ARGV[2])
if lost then
  redis.call('DEL', key)
end
redis.call('HMSET', key, 'mode', mode or 'read', field, '1')
if left ~= -1 then
  local lease = redis.pcall('PEXPIRE', key, math.max(left, tonumber(ARGV[2])))
  if type(lease) == 'table' then -- refused, by the user's permissions
    redis.call('DEL', own)
    redis.call('HDEL', key, field)
    if redis.call('HLEN', key) == 1 then -- the mode: nobody else is there
      redis.call('DEL', key)
    end
    return lease
  end
end
return nil
