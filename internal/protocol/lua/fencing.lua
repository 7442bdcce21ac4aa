-- Fencing tokens, for scripts whose head has defined counter: the key that keeps the last token drawn, empty if no token is
-- wanted.

--# draw
-- Draws 100 tokens, for a hold's owner and the owners in its process to whom it is handed on. Returns the first one, or an
-- error. Tokens grow with each draw, and are at least the server's time in microseconds. So they go on growing when the counter
-- has expired, or the server has lost it. The counter lives for an hour, plus the time by which it is ahead of the clock, after
-- more than 10 000 draws a second or when the clock was set back.
local function draw()
  local last = redis.pcall('GET', counter)
  if type(last) == 'table' then
    return last
  end
  if last and (#last > 16 or not string.find(last, '^%d+$')) then -- tonumber accepts nan and 0x1
    return redis.error_reply('ERR value is not an integer')
  end
  local time = redis.call('TIME')
  local micros = time[1] * 1000000 + time[2]
  local first = math.max(micros, (tonumber(last or '') or 0) + 1)
  local ahead = math.floor((first + 99 - micros) / 1000)
  local done = redis.pcall('SET', counter, string.format('%.0f', first + 99), 'PX', string.format('%.0f', 3600000 + ahead))
  return done.err and done or first
end

--# library
-- Draws for the hold that is about to own the lock, before the lock changes, since drawing may be refused: then it returns the
-- error. A drawn token is part of the reply once the hold owns the lock.
local token, unfenced = nil, nil
local function fence()
  local first = counter ~= '' and draw() or nil
  if type(first) ~= 'table' then
    token = first
    return nil
  end
  if string.find(first.err, 'WRONGTYPE') or string.find(first.err, 'not an integer') then
    first = redis.error_reply('ERR ' .. counter .. ' is in the place of the fencing counter, and holds something else')
  end
  unfenced = first
  return first
end
