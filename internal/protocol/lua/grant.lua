-- Makes a hold a reader, or the writer, of a lock that is free for it and has this mode, if any. Returns the error when that
-- was refused, by the user's permissions: a hash without a lease would stay for ever.
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
  local left, own = mode and redis.call('PTTL', key) or 0, name .. ':' .. value .. ':rwlock_timeout:1'
  redis.call('SET', own, '1', 'PX', lease)
  redis.call('HMSET', key, 'mode', mode or 'read', value, '1')
  if left ~= -1 then
    local done = redis.pcall('PEXPIRE', key, math.max(left, tonumber(lease))) -- mutant: lease ends others
    if type(done) == 'table' then
      redis.call('DEL', own)
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
