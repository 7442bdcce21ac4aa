-- What the scripts of read-write locks have in common. They have defined key, and name, as it stands in derived keys.
local function timeout(field, n)
  return name .. ':' .. field .. ':rwlock_timeout:' .. n
end

local mode = redis.call('HGET', key, 'mode') -- read or write, or false when nobody has the lock

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

-- Makes a hold a reader, or the writer; the lock is free for it. Returns the error when that was refused, by the user's
-- permissions: a hash without a lease would stay for ever.
local function grant(value, lease, kind)
  if kind ~= 'r' then
    redis.call('HMSET', key, 'mode', 'write', value .. ':write', '1')
    local done = redis.pcall('PEXPIRE', key, lease)
    if type(done) == 'table' then
      redis.call('DEL', key)
      return done
    end
    mode = 'write'
    return nil
  end
  -- First what may be refused because a cluster keeps it elsewhere, or the user has no permission for that key.
  local left = mode and redis.call('PTTL', key) or 0
  redis.call('SET', timeout(value, 1), '1', 'PX', lease)
  redis.call('HMSET', key, 'mode', mode or 'read', value, '1')
  if left ~= -1 then
    local done = redis.pcall('PEXPIRE', key, math.max(left, tonumber(lease)))
    if type(done) == 'table' then
      redis.call('DEL', timeout(value, 1))
      redis.call('HDEL', key, value)
      if not mode then
        redis.call('DEL', key)
      end
      return done
    end
  end
  mode = mode or 'read'
  return nil
end

-- For the queue, see serve.lua. Others may read while some do.
local function free(kind)
  return not mode or kind == 'r' and mode == 'read'
end

local function own(value, lease, kind)
  local refused = grant(value, lease, kind)
  if refused then
    error(refused)
  end
end
