-- What a release does about waiting calls, with and without a ticket: a part of the scripts after which the lock may be free.
-- The head has defined yields, leads, and quiet, see release.lua.

--# library
local announced = false

-- Makes the holds of the first tickets the owners, or opens a window. Entries are the first members of the queue. Returns
-- whether it has granted the lock, and whether others wait.
--
-- A process that tries each 100 ms without a ticket is not seen. So there is a long window now and then: each 1.7 s, or each 15
-- s while it is quiet and no call without a ticket was seen since the newest long window. If tickets kept no call out for a
-- second, a due window is put off, and the time counts anew. That shows in the first ticket, which came a second after the
-- newest release with others waiting. But the key may have been taken by chance at each try, so a window is put off only once:
-- the next comes 1.7 s later.
local function passOn(entries)
  local WIDE, RARELY, SELDOM = 110, 1700, 15000 -- a long window's length, and the time between two, also while it is quiet
  local SHORT, OFTEN = 10, 100                  -- the same for a short window, for calls that are told of releases
  local PAUSE = 1000                            -- a long window is put off if tickets kept no call out for this long

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
  if not free('w') then -- tickets keep out no call without a ticket
    local next, served = grantNext(time[1] * 1000000 + time[2], nil, first, registry, number, lease, kind, place)
    return served, next ~= nil
  end
  local counted, seen, late = wide >= 2, wide % 1 >= 0.5, wide % 0.5 > 0 -- late: it was put off; see queue.lua
  local back = math.max(open, wide) - now > WIDE -- no window is that long: the server's clock went back
  local due = now - wide >= (quiet and not seen and not late and SELDOM or RARELY)
  local putOff = counted and not back and due and not late and (place and place / 1000 or now) - open >= PAUSE
  if putOff or back or not counted then
    if open == 0 or back then
      open = now - OFTEN
    end
    wide, due = now + (seen and 0.5 or 0) + (putOff and 0.25 or 0), false
    redis.call('ZADD', queue, -open, 'open', -wide, 'wide')
    local done = redis.pcall('PEXPIRE', queue, 120000)
    if type(done) == 'table' then -- it is forbidden
      if not entries[1] then -- the queue is new, and would stay for ever
        redis.call('ZREM', queue, 'open', 'wide')
      end
      error(done)
    end
  end
  if now < open then
    window = open - now
  elseif first and not registry then
    window = SHORT
  elseif now - open >= OFTEN then
    local told = announce()
    announced = true
    if told > 0 or sharded and (seen or not quiet) then -- on a cluster subscribers at other nodes are not known
      window = SHORT
    else
      redis.call('ZADD', queue, -now, 'open') -- no call is told: a window of no length
      redis.call('PEXPIRE', queue, 120000)
    end
  end
  if first == 'guest' then
    redis.call('ZREM', queue, first)
    due = true
  end
  if due and not leads then
    window = math.max(window or 0, WIDE)
    redis.call('ZADD', queue, -(now + window), 'wide')
  end
  if window then
    redis.call('ZADD', queue, -(now + window), 'open')
    redis.call('PEXPIRE', queue, 120000)
    local next = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 2)
    warn(next[1], 'n', window)
    warn(next[2], 'n', window + WIDE) -- longer than any window, so that its call does not take it for one
    return false, true
  end
  local _, served = grantNext(time[1] * 1000000 + time[2], nil, first, registry, number, lease, kind, place)
  return served, served
end
