-- Makes a hold wait in the queue of a lock: puts its ticket there, or looks at it. It makes the hold the owner when its turn
-- has come, and grants a free lock to the tickets in front.
--
-- KEYS     as of obtain.lua
-- ARGV[1]  the hold's value, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the registry's prefix
-- ARGV[4]  enqueue, to get a ticket; empty or missing, to get one at the end of a queue in which others waited a moment ago, with
--          a short reply; check, to look at it
-- ARGV[5]  S on a cluster
-- ARGV[6]  as of obtain.lua
-- ARGV[7]  enqueue: the ticket's former place; empty or missing: the ticket comes last. check: clear, to take out the tickets in
--          front whose processes are gone also while the lock is held; empty or missing: only when it is free
-- ARGV[8]  enqueue: an older ticket of this call to replace; empty or missing: none
-- ARGV[9]  the zeros in front of the lease in the ticket, see queue.lua; missing: none
-- ARGV[10] as ARGV[7] of obtain.lua
--
-- Replies nil when granted, or "granted" and the token. Else an array:
--   queued   the milliseconds that the holder's lease has left, or a window (-1: no end), how many tickets are in front, the
--            place, and 1 when the holder may not know of the queue, else 0. A semaphore's short way adds the number of permits
--            if the call has named another one
--   owner    the milliseconds that the hold's own lease has left: it has the lock
--   missing  the ticket is not there
--   refused  this command is late: a later hold of its registry has the lock
--   error    why there is no queue
-- or, as the short reply, "<any> <place>": 1 when there are tickets in front, else 0, and the ticket's place.

--# head
local key, value, lease, prefix, asks, sharded = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4] or '', ARGV[5] == 'S'
local counter, queues = ARGV[6] or '', false
if counter == '2' then
  counter = KEYS[2]
end

--# arguments
if asks == '' then
  asks = 'enqueue'
end
local under = ARGV[10] or ''
--# ticket
local member, older = value .. '|' .. (ARGV[9] or '') .. lease .. side, ARGV[8] or ''
local state, awaited, left, foreign = holder(value)
if state == 'wrong' then
  return redis.error_reply(awaited)
elseif state == 'later' then
  return {'refused'}
elseif state == 'mine' or state == 'ours' then
  local waited = redis.pcall('ZREM', queue, member) == 1
  if older ~= '' then
    redis.pcall('ZREM', queue, older)
  end
  if state == 'mine' then
    return {'owner', left or redis.call('PTTL', key)}
  end
  if asks == 'check' and not waited then -- this look is late: its call has left, and nothing would remove what it takes
    return {'missing'}
  end
  return fence() or take(value, lease, side, true) or token and {'granted', token}
end
--# wait
left = left or redis.call('PTTL', key)

local micros, now, place = 0, 0, nil
local entries = nil -- the first members of the queue, if the lock is free for the ticket
local ahead = 2     -- how many members in front are no tickets: the windows, and an earlier reservation

-- Returns the reply to a waiting call.
local function queued()
  if asks ~= 'enqueue' then
    redis.call('PEXPIRE', queue, 120000)
  end
  if foreign == true then
    trace()
  end
  return {'queued', left, redis.call('ZRANK', queue, member) - ahead, place, foreign and 1 or 0}
end

-- Puts the ticket in the queue, or looks at it. Returns the reply, unless the lock is free.
local function await()
  if asks == 'enqueue' or free(side) then
    local time = redis.call('TIME')
    micros = time[1] * 1000000 + time[2]
    now = math.floor(micros / 1000)
  end
  if asks == 'enqueue' then
    place = ARGV[7] or ''
    if older ~= '' then
      place = place ~= '' and place or redis.call('ZSCORE', queue, older) or ''
      redis.call('ZREM', queue, older)
    end
    local last = redis.call('ZREVRANGE', queue, '0', '0', 'WITHSCORES')
    local score = tonumber(last[2])
    if place == '' then
      place = string.format('%.0f', math.max(micros, (score or 0) + 1))
    end
    if not score then
      redis.call('ZADD', queue, -now, 'open', -1, 'wide', place, member)
    else
      redis.call('ZADD', queue, place, member)
    end
    -- Otherwise the looks of waiting calls keep the queue alive; but all may wait for too short a time to look.
    if not score or score < 0 and now + score > 30000 or
      score > 0 and math.floor(score / 10000000) ~= math.floor(micros / 10000000) then
      local done = redis.pcall('PEXPIRE', queue, 120000)
      if type(done) == 'table' then -- it is forbidden
        if not score then -- the queue is new, and would stay for ever
          redis.call('ZREM', queue, 'open', 'wide', member)
        end
        error(done)
      end
    end
  else
    entries = free(side) and redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
    place = entries and entries[5] == member and entries[6] or redis.call('ZSCORE', queue, member)
    if not place then
      return {'missing'}
    end
  end
  if side ~= '' and string.find(place, '.', 1, true) then -- see granted in permits.lua
    place = string.match(place, '^%d+') -- mutant: never seen to run
    redis.pcall('ZADD', queue, place, member)
  end
  local reservation = side ~= '' and redis.call('ZSCORE', queue, 'guest')
  if reservation and tonumber(reservation) < tonumber(place) then
    ahead = 3
  end
  if not free(side) then
    return queued()
  end
  entries = entries or redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
end

local ok, reply = pcall(await)
if not ok then
  return {'error', type(reply) == 'table' and reply.err or reply}
elseif reply and (ARGV[7] ~= 'clear' or (reply[3] or 0) < 1) then
  return reply
end

--# clear
-- While the lock is held nobody grants it to the tickets in front, so those of dead processes would stay. Without them the call
-- looks sooner when the holder crashes. The new first one is told, unless it is this call, which is replied its rank. If there
-- are readers who may enter, or enough permits for it, it looks at once. Nobody loses a place: a process that was only away
-- for a moment looks when it listens again, and asks for another ticket with its old place. If a command fails, the reply is as
-- good as before.
if reply then
  local function clear()
    local first, registry, number = heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES'), member)
    local rank = redis.call('ZRANK', queue, member) - ahead
    if rank < reply[3] then -- mutant: next one is not told of it
      reply[3] = rank
      if registry and first ~= member then
        tell(registry, number, 'n', free('r') and 0 or math.max(left, 0))
      end
    end
  end
  pcall(clear) -- mutant: dead stay in front
  return reply
end
--# turn
-- Handles a ticket for which the lock is free. Returns the reply, unless its hold has the lock now.
local function come()
  local LONGEST = 110  -- the longest window; if one ends later, the server's clock went back
  local PATIENCE = 300 -- for how long a writer's reservation keeps back readers that could read
  local UNKNOWN = 120000000 -- how old a ticket of a newer version may be, in microseconds; the first one also had a window
  local open = 0
  for i = 1, math.min(#entries, 4), 2 do
    open = entries[i] == 'open' and -entries[i + 1] or open
  end
  if now < open and open - now <= LONGEST and free('w') then
    left = open - now
    return queued()
  end
  if entries[5] == 'guest' then
    local patience = entries[6] / 1000 + PATIENCE - now
    if patience > 0 and patience <= PATIENCE then -- otherwise the server's clock went back
      left = patience
    else
      ahead = 2
      redis.call('ZREM', queue, 'guest')
      redis.call('ZADD', queue, -now, 'wide')
      entries = redis.call('ZRANGE', queue, '0', '3', 'WITHSCORES')
    end
  end
  local next, granted = grantNext(micros, member, heads(entries, member, micros - UNKNOWN))
  if next ~= member or not free(side) then
    if granted then
      left, foreign = tonumber(granted), false
    end
    return queued()
  end
  redis.call('ZREM', queue, member)
  local refused = fence() or take(value, lease, side, true)
  if refused then
    error(refused)
  elseif free('r') then -- other readers, or holders of other permits
    grantNext(micros, nil, heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')))
  else
    local following = entries[5] == member and {entries[7]} or redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)
    warn(following[1], 'n', lease)
  end
end

ok, reply = pcall(come)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or token and {'granted', token}
