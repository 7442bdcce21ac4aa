-- For a call that waits: puts its ticket in the queue, or looks after it, and serves the first tickets if the lock is free.
--   member              its ticket
--   value, lease, kind  its hold
--   how                 enqueue, check, or due when it looks because its time has come
--   place, older        where its ticket was; and one that it replaces
--   left, foreign       what the holder's lease has left, and whether that may not know of the queue
-- Replies nothing when its hold owns the key now.
local LONGEST = 110 -- of windows; when one ends later the server's clock went back
local function ask(member, value, lease, kind, how, place, older, left, foreign)
  local micros, now = 0, 0
  if how == 'enqueue' or free(kind) then
    local time = redis.call('TIME')
    micros = time[1] * 1000000 + time[2]
    now = math.floor(micros / 1000)
  end
  local entries = nil
  if how == 'enqueue' then
    if older ~= '' then
      place = place ~= '' and place or redis.call('ZSCORE', queue, older) or ''
      redis.call('ZREM', queue, older)
    end
    local last = redis.call('ZREVRANGE', queue, '0', '0', 'WITHSCORES')
    local score = tonumber(last[2])
    if place == '' then
      place = string.format('%.0f', math.max(micros, (score or 0) + 1))
    end
    local refresh = true
    if not score then
      redis.call('ZADD', queue, -now, 'open', -1, 'wide', place, member)
    else
      redis.call('ZADD', queue, place, member)
      refresh = score < 0 and now + score > 30000 -- those who wait see to it else
    end
    if refresh then
      redis.call('PEXPIRE', queue, 120000)
    end
  else
    entries = free(kind) and redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES') or {}
    place = entries[5] == member and entries[6] or redis.call('ZSCORE', queue, member)
    if not place then
      return {'missing'}
    end
  end
  local ahead = 2 -- the members in front of its own that are no tickets: open and wide, and a guest that came before
  local guest = kind ~= '' and redis.call('ZSCORE', queue, 'guest')
  if guest and tonumber(guest) < tonumber(place) then
    ahead = 3
  end
  if free(kind) then
    entries = entries or redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
    local open = 0
    for i = 1, math.min(#entries, 4), 2 do
      open = entries[i] == 'open' and -entries[i + 1] or open
    end
    if now < open and open - now <= LONGEST and free('w') then
      left = open - now
    else
      -- include serve
      if entries[5] == 'guest' then
        local patience = entries[6] / 1000 + PATIENCE - now
        if patience > 0 and patience <= PATIENCE then -- else the server's clock went back
          left = patience
        else
          ahead = 2
          dismiss(now)
          entries = redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
        end
      end
      if how == 'due' and entries[5] ~= member and free('w') then -- those in front had their time
        for _, other in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '(' .. place)) do
          redis.call('ZREM', queue, other)
          warn(other, 'd', 0)
        end
        entries = redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
      end
      local next, served = serve(micros, member, heads(entries, member))
      if next == member and free(kind) then
        redis.call('ZREM', queue, member)
        own(value, lease, kind)
        if free(kind) then -- other readers
          serve(micros, nil, heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')))
        else
          local behind = entries[5] == member and {entries[7]} or redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)
          warn(behind[1], 'n', lease)
        end
        return nil
      end
      if served then
        left, foreign = tonumber(served), false
      end
    end
  end
  if how ~= 'enqueue' then
    redis.call('PEXPIRE', queue, 120000)
  end
  return {'queued', left, redis.call('ZRANK', queue, member) - ahead, place, foreign and 1 or 0}
end
