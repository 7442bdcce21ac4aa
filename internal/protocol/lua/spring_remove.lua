-- Removes the key of a lock that nobody waits for, publishes that, and replies, unless that is forbidden. A part of scripts.
if redis.pcall('UNLINK', key) == 1 then
  if publish ~= '' then -- to publish may be forbidden; the lock is released all the same
    redis.pcall('PUBLISH', publish .. key, key)
  end
  return 1
end
