-- Takes in that a field is gone: the lock now lives as long as the longest lease of those who stay, if any. One who writes
-- has the lease of the hash itself.
local function settle()
  local longest = 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], -6) == ':write' then
      return
    end
    for n = 1, tonumber(fields[i + 1]) or 0 do
      longest = math.max(longest, redis.call('PTTL', timeout(fields[i], n)))
    end
  end
  if longest == 0 then
    redis.call('DEL', key)
    mode = false
    return
  end
  redis.call('PEXPIRE', key, longest)
  if mode ~= 'read' then
    redis.call('HSET', key, 'mode', 'read')
    mode = 'read'
  end
end
