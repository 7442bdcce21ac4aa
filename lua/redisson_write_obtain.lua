-- Lets a hold write under a read-write lock in Redisson's format, if nobody else reads or writes.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, "<registry>:<number>", less ':write'
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the name as it stands in derived keys
--
-- Replies nil when granted, else the milliseconds that the lock has left (-1: it has no end).
local key, field = KEYS[1], ARGV[1] .. ':write'
local mode = redis.call('HGET', key, 'mode')
if not mode and redis.call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local again = mode and redis.call('HEXISTS', key, field) == 1
if mode and not again then
  -- Holds of the same registry with smaller numbers are grants whose replies were lost: the registry asks to write only
  -- while none of its own owners has the lock.
  local registry, number = string.match(ARGV[1], '^(.*:)(%d+)$')
  local others, lost = false, {}
  for _, other in ipairs(redis.call('HKEYS', key)) do
    if other ~= 'mode' then
      local n = nil
      if string.sub(other, 1, #registry) == registry then
        n = tonumber(string.match(string.sub(other, #registry + 1), '^%d+') or '')
      end
      if n and n < tonumber(number) then
        lost[#lost + 1] = other
      else
        others = true
      end
    end
  end
  for _, other in ipairs(lost) do
    redis.call('HDEL', key, other)
    redis.call('DEL', ARGV[3] .. ':' .. other .. ':rwlock_timeout:1')
  end
  if others and mode == 'read' and #lost > 0 then
    -- The lock lives as long as the longest lease of those who read, no longer as long as one of the lost.
    local longest = 0
    local fields = redis.call('HGETALL', key)
    for i = 1, #fields, 2 do
      for n = 1, tonumber(fields[i + 1]) or 0 do
        longest = math.max(longest, redis.call('PTTL', ARGV[3] .. ':' .. fields[i] .. ':rwlock_timeout:' .. n))
      end
    end
    if longest > 0 then
      redis.call('PEXPIRE', key, longest)
    end
  end
  if others then
    return redis.call('PTTL', key)
  end
  redis.call('DEL', key)
end
if again and redis.call('PTTL', key) >= tonumber(ARGV[2]) then
  return nil -- a second grant of the same hold, which comes late: its owner may read under it, for longer
end
redis.call('HMSET', key, 'mode', 'write', field, '1')
local lease = redis.pcall('PEXPIRE', key, ARGV[2])
if type(lease) == 'table' then -- refused, by the user's permissions: a hash without a lease would stay for ever
  redis.call('DEL', key)
  return lease
end
return nil
