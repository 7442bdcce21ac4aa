-- For those without a ticket. A part of scripts that know the queue.
local RARELY = 1700   -- how rarely there is a window for who tries each 100 ms
local PATIENCE = 300  -- for how long a guest stays in front of those who could read
local RESPITE = 300   -- for how long there is no other one then, or after a window

-- Tells whether the time of a guest is over, or was told by a clock that went back since.
local function stale(guest, now)
  return math.abs(now - guest / 1000) >= PATIENCE
end

-- Removes a guest for which the lock has not become free.
local function dismiss(now)
  redis.call('ZREM', queue, 'guest')
  redis.call('ZADD', queue, -now, 'wide')
end
