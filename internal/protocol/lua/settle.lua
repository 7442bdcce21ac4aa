-- Takes in that a field is gone: the lock now lives as long as the longest lease of those who stay, if any. One who writes
-- has the lease of the hash itself. Returns the mode, or false when nobody has the lock any more.
local function settle()
  local longest, mode = 0, 'read'
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if fields[i] == 'mode' then
      mode = fields[i + 1]
    elseif string.sub(fields[i], -6) == ':write' then -- mutant: reader takes its writer along
      return 'write'
    else
      for n = 1, tonumber(fields[i + 1]) or 0 do
        longest = math.max(longest, redis.call('PTTL', name .. ':' .. fields[i] .. ':rwlock_timeout:' .. n))
      end
    end
  end
  if longest == 0 then -- mutant: lock goes with one
    redis.call('DEL', key)
    return false
  end
  redis.call('PEXPIRE', key, longest)
  if mode ~= 'read' then
    redis.call('HSET', key, 'mode', 'read')
  end
  return 'read'
end
