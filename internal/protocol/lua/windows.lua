-- What a release does about those who wait, and about those who have no ticket: a part of the scripts after which the lock may be free.
-- The head has defined yields, leads, and age, see release.lua.

--# library
local announced = false

-- Makes the holds of the first tickets the owners, or opens a window. Entries are the first members of the queue. Returns whether
-- it did the first, and whether others wait. When no release with a waiter is known of the moment before the call of the hold came that
-- ends now, tickets kept nobody out then: the long windows are counted from now on, but for one that has just come due.
local function handOver(entries)
  local WIDE = 110             -- a window in which who tries each 100 ms has its chance
  local RARELY = 1700          -- how rarely there is such a window
  local SHORT, OFTEN = 10, 100 -- the same for who is told of releases, and how rarely there is one
  local PAUSE = 1000           -- how long that moment is: more than OFTEN, in which nothing is written down, and what messages take
  local LATE = 2500            -- a window that is due for less is not put off: a process may see its time late
  local STEP = 100             -- how much longer than the one in front of it who waits leaves a free key alone

  local open, wide = 0, 0
  for i = 1, math.min(#entries, 4), 2 do
    if entries[i] == 'open' then
      open = -entries[i + 1]
    elseif entries[i] == 'wide' then
      wide = -entries[i + 1]
    end
  end
  local first, registry, number, lease, kind, place = heads(entries)
  if not first and not yields then
    return false, false
  end
  local time = redis.call('TIME')
  local now, window = time[1] * 1000 + math.floor(time[2] / 1000), nil
  if not free('w') then -- nobody is kept out who could come in without a ticket
    local next, served = grantNext(time[1] * 1000000 + time[2], nil, first, registry, number, lease, kind, place)
    return served, next ~= nil
  end
  local back = math.max(open, wide) - now > WIDE -- no window is as long: the server's clock went back
  if wide <= 1 or back or now - age - math.max(open, wide) >= PAUSE and now - wide >= LATE then -- from now on tickets keep others out
    open, wide = (open == 0 or back) and now - OFTEN or open, now
    redis.call('ZADD', queue, -open, 'open', -wide, 'wide')
    redis.call('PEXPIRE', queue, 120000)
  end
  if now < open then
    window = open - now
  elseif first and not registry then
    window = SHORT
  elseif now - open >= OFTEN then
    local told = announce()
    announced = true
    if told > 0 or sharded then -- on a cluster nobody knows who is subscribed at other nodes
      window = SHORT
    else
      redis.call('ZADD', queue, -now, 'open') -- nobody hears of it: a window of no length
      open = now
    end
  end
  if first == 'guest' then
    redis.call('ZREM', queue, first)
    wide = 0
  end
  if now - wide >= RARELY and not leads then
    window = math.max(window or 0, WIDE)
    redis.call('ZADD', queue, -(now + window), 'wide')
  end
  if window then
    redis.call('ZADD', queue, -(now + window), 'open')
    redis.call('PEXPIRE', queue, 120000)
    local next = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 2)
    warn(next[1], 'n', window)
    warn(next[2], 'n', window + STEP)
    return false, true
  end
  upcoming = string.format('%.0f', math.min(open + OFTEN, wide + RARELY))
  local _, served = grantNext(time[1] * 1000000 + time[2], nil, first, registry, number, lease, kind, place)
  return served, served
end
