-- For a writer that has no ticket, but tries again soon, or is told when the lock is free: puts a guest in a queue without
-- tickets. Readers do not come in past it, and when all are out the release leaves the lock free for 110 ms. When they are not out
-- after 300 ms it goes, and for as long nobody is kept out then.
-- Scripts have included chance.lua.
local function invite()
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local wide = tonumber(redis.call('ZSCORE', queue, 'wide') or -1)
  if (now + wide >= RESPITE or now + wide < -RESPITE) and not redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1] then
    redis.call('ZADD', queue, 'NX', -now, 'open', -now, 'wide', string.format('%.0f', time[1] * 1000000 + time[2]), 'guest')
    redis.call('PEXPIRE', queue, 120000)
  end
end
