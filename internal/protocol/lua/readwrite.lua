-- The format of Redisson's RReadWriteLock: a hash with the mode, read or write, and a field with a count of 1 per holder: the
-- value of a reader's hold, or the value of a writer's hold and ":write". The key "{<key>}:<field>:rwlock_timeout:<n>" lives as
-- long as the n-th lease of a reader, so that the hash can be kept for as long as the longest one. A writer has the lease of
-- the hash. A holder of Redisson looks the same. The sections of readers and of writers follow the common ones. The second key of
-- a reader's script is that of its own lease, unless the server refuses to have it named.

--# read obtain in turn
local mode = redis.call('HGET', key, 'mode')
local enters = not mode and redis.call('EXISTS', key) == 0
if mode == 'read' then -- mutant: reader beside a writer
  -- A waiting reader does not overtake waiting writers.
  enters = asks == '' or asks == 'seen' or not redis.pcall('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
elseif mode == 'write' and under == '' and asks ~= 'reserve' and asks ~= 'seen' then
  local fields, registry = redis.call('HKEYS', key), string.match(value, '^(.*:)')
  if #fields == 2 and string.find(fields[1], registry, 1, true) ~= 1 and string.find(fields[2], registry, 1, true) ~= 1 then
    return redis.call('PTTL', key)
  end
end
if enters then
  local left = mode and redis.call('PTTL', key) or 0
  local own = KEYS[2] or (braced and key or '{' .. key .. '}') .. ':' .. value .. ':rwlock_timeout:1'
  redis.call('SET', own, '1', 'PX', lease)
  redis.call('HMSET', key, 'mode', 'read', value, '1')
  if left == -1 or
    type(redis.pcall('PEXPIRE', key, math.max(left, tonumber(lease)))) == 'number' then -- mutant: lease ends others
    return nil
  end
  redis.call('DEL', own) -- it is forbidden
  redis.call('HDEL', key, value)
  if not mode then
    redis.call('DEL', key)
  end
end

--# write obtain in turn
local fields = redis.call('HKEYS', key)
if fields[1] and fields[2] and not fields[3] and asks == '' and (fields[1] == 'mode' or fields[2] == 'mode') then
  local registry = string.match(value, '^(.*:)')
  if string.find(fields[1], registry, 1, true) ~= 1 and string.find(fields[2], registry, 1, true) ~= 1 then
    return redis.call('PTTL', key)
  end
elseif counter == '' and not fields[1] then
  redis.call('HMSET', key, 'mode', 'write', value .. ':write', '1')
  if type(redis.pcall('PEXPIRE', key, lease)) == 'number' then
    if asks == 'reserve' then
      redis.pcall('ZREM', queue, 'guest')
    end
    return nil
  end
  redis.call('DEL', key) -- it is forbidden
end

--# read renew
if redis.call('HEXISTS', key, value) == 0 then
  return -redis.call('EXISTS', key)
end
-- The field alone proves nothing: it stays behind while others read.
local own = KEYS[2] or (string.find(key, '{', 1, true) and key or '{' .. key .. '}') .. ':' .. value .. ':rwlock_timeout:1'
local alone, shorter = nil, false -- shorter: the lock may have to end sooner, see extend
if lease == '' then
  if redis.call('PTTL', own) == -2 then -- mutant: field without a lease
    redis.call('EXISTS', key, own) -- fails if the lease is at another node, see rest
    return 0
  end
else
  alone = redis.call('HLEN', key) == 2 -- mutant: reading renewal ends others
  shorter = not alone and redis.call('PTTL', own) > tonumber(lease)
  if redis.call('PEXPIRE', own, lease) == 0 then -- unlike SET, allowed when the server is out of memory
    redis.call('EXISTS', key, own)
    return 0
  elseif alone or redis.call('PTTL', key) < tonumber(lease) then
    redis.call('PEXPIRE', key, lease)
  end
end
if counter == '' and not shorter then
  return 1
end

--# write renew
if redis.call('HEXISTS', key, value .. ':write') == 0 then
  return -redis.call('EXISTS', key)
elseif counter == '' then
  if lease ~= '' and
    (redis.call('HLEN', key) == 2 or redis.call('PTTL', key) < tonumber(lease)) then -- mutant: writing renewal ends reading
    redis.call('PEXPIRE', key, lease)
  end
  return 1
end

--# read release queued
if plain and (prefix == '' or redis.pcall('EXISTS', queue) == 0) and
  redis.call('HEXISTS', key, value) == 1 and redis.call('HLEN', key) == 2 then -- the last reader: the mode, and its field
  local name = braced and key or '{' .. key .. '}'
  local gone = redis.pcall('DEL', key, KEYS[2] or name .. ':' .. value .. ':rwlock_timeout:1')
  if type(gone) == 'number' then -- else the lease is at another node, see rest
    if channels ~= '' then -- publishing may be forbidden; the lock is released all the same
      redis.pcall('PUBLISH', channels .. name, '0')
      if sharded then -- Redisson listens there in a cluster
        redis.pcall('SPUBLISH', channels .. name, '0')
      end
    end
    return gone - 1 -- 0 if its lease was over
  end
end

--# write release queued
if plain and (prefix == '' or redis.pcall('EXISTS', queue) == 0) and
  redis.call('HEXISTS', key, value .. ':write') == 1 and redis.call('HLEN', key) == 2 then
  redis.call('DEL', key)
  if channels ~= '' then -- see announce
    local channel = channels .. (braced and key or '{' .. key .. '}')
    local heard = sharded and redis.pcall('SPUBLISH', channel, '1')
    if type(heard) == 'number' and heard > 0 then
      redis.pcall('SPUBLISH', channel, '0')
    end
    heard = redis.pcall('PUBLISH', channel, '1')
    if type(heard) == 'number' and heard > 0 then
      redis.pcall('PUBLISH', channel, '0')
    end
  end
  return 1
end

--# format
local name = string.find(key, '{', 1, true) and key or '{' .. key .. '}'
local mode = false -- read or write; false: the lock is free
local again = false -- the hold is the writer already
local abandoned = false -- the holds that have the lock are not in use

-- Readers may join readers.
local function free(kind)
  return not mode or kind == 'r' and mode == 'read' -- mutant: admitted beside a writer
end

-- Returns what the lease with this key has left: -2, it is over; nil, it is not known. While the slot of a cluster moves, the key
-- may be at another node than the lock. Where the slot goes, a command about that key alone finds nothing, as if the lease were
-- over. One about both keys is refused.
local function rest(own)
  local left = redis.pcall('PTTL', own)
  if type(left) == 'number' and
    (left ~= -2 or type(redis.pcall('EXISTS', key, own)) == 'number') then -- mutant: lease elsewhere is over
    return left
  end
end

-- Adjusts the lock after a field was removed: it now lives as long as the longest lease of the remaining holders. A writer has
-- the lease of the hash itself. Returns the mode, or false if no holder remains. If one of the leases is not known, or the user
-- may not change them, the lock lives for as long as it would have: that is as long as any of them.
--
-- It removes the fields of readers whose leases are over: those of crashed processes would stay for as long as readers follow
-- each other. It does so only with fields of this library, which end in a time in microseconds: once the key of a lease is gone
-- nothing brings it back. A client of Redisson that stood still goes on renewing the hash while its field is there.
local function recompute()
  local longest, was, known = 0, 'read', true
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if fields[i] == 'mode' then
      was = fields[i + 1]
    elseif string.sub(fields[i], -6) == ':write' then -- mutant: reader takes its writer along
      return 'write'
    else
      local left = -2
      for n = 1, tonumber(fields[i + 1]) or 0 do
        local one = rest(name .. ':' .. fields[i] .. ':rwlock_timeout:' .. n)
        left, known = math.max(left, one or -1), known and one
      end
      if left == -2 and string.find(fields[i], ':%d%d%d%d%d%d%d%d%d%d%d%d%d+$') then -- mutant: dead readers stay
        redis.call('HDEL', key, fields[i])
      end
      longest = math.max(longest, left)
    end
  end
  if known and longest == 0 then -- mutant: lock goes with one
    redis.call('DEL', key)
    return false
  elseif known then
    redis.pcall('PEXPIRE', key, longest)
  end
  if was ~= 'read' then
    redis.call('HSET', key, 'mode', 'read')
  end
  return 'read'
end

-- Makes a hold a reader, or the writer, of a lock that is free for it. Returns the error if the user's permissions refuse that,
-- and removes what it has written: a hash without a lease would stay forever.
local function take(value, lease, kind)
  if kind ~= 'r' then
    if again and redis.call('PTTL', key) >= tonumber(lease) then
      return nil -- a late second grant of the same hold: its owner may read as well, with a longer lease
    end
    redis.call('HMSET', key, 'mode', 'write', value .. ':write', '1')
    local done = redis.pcall('PEXPIRE', key, lease)
    if type(done) == 'table' then
      redis.call('DEL', key)
      return done
    end
    mode = 'write'
    return nil
  end
  -- First the key that may be refused because it is elsewhere in a cluster, or for lack of permission.
  local left, own = mode and redis.call('PTTL', key) or 0, name .. ':' .. value .. ':rwlock_timeout:1'
  redis.call('SET', own, '1', 'PX', lease)
  if abandoned then
    redis.call('DEL', key)
    left, mode, abandoned = 0, false, false
  end
  redis.call('HMSET', key, 'mode', mode or 'read', value, '1')
  if left ~= -1 then
    local done = redis.pcall('PEXPIRE', key, math.max(left, tonumber(lease)))
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
end

--# reservation
-- For a writer without a ticket that tries again soon, or is told when the lock is free: puts its reservation in a queue
-- without tickets. New readers do not pass it, and when all readers have left, the release leaves the lock free for 110 ms. If
-- they have not left after 300 ms, the reservation is removed, and there is none for as long.
local function placeGuest()
  local RESPITE = 300 -- for how long there is no new reservation after one that was removed, or after a window
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local newest = redis.call('ZSCORE', queue, 'wide')
  local wide = math.ceil(newest or -1) -- without the fraction
  if (now + wide >= RESPITE or now + wide < -RESPITE) and not redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1] then
    redis.call('ZADD', queue, 'NX', -now, 'open', -now, 'wide', string.format('%.0f', time[1] * 1000000 + time[2]), 'guest')
    local done = redis.pcall('PEXPIRE', queue, 120000)
    if type(done) == 'table' then -- it is forbidden
      redis.call('ZREM', queue, 'guest')
      if not newest then -- the queue is new, and would stay for ever
        redis.call('ZREM', queue, 'open', 'wide')
      end
      error(done)
    end
  end
end

-- Removes the reservation at this place if its time is over, or the server's clock went back. Returns whether it did.
local function expire(place, time)
  local PATIENCE = 300 -- for how long it keeps back readers that could read
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if math.abs(now - place / 1000) < PATIENCE then
    return false
  end
  redis.call('ZREM', queue, 'guest')
  redis.call('ZADD', queue, -now, 'wide')
  return true
end

--# read in passing
-- A waiting reader does not overtake waiting calls in the queue, unless their processes are gone.
if asks ~= '' and asks ~= 'seen' and state == 'free' and mode == 'read' then
  local first, gone
  for _ = 1, 20 do
    first, gone = redis.pcall('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1), false
    local registry = string.match(first[1] or '', '^(.*):%d+|%d+[rw]?$') -- else it is of another version
    if registry then
      local own = (slotted or prefix .. '-channel@') .. registry
      local heard = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', own)[2] -- it may be forbidden
      gone = heard == 0 and redis.pcall('ZREM', queue, first[1]) == 1 -- mutant: dead keep readers out
    end
    if not gone then
      break
    end
  end
  local waits = first[1]
  if waits == 'guest' then
    local time = redis.pcall('TIME')
    local ok, over = pcall(expire, first[2], time)
    waits = time[1] and not (ok and over)
  end
  state = waits and 'taken' or state
end

--# write in passing
if asks == 'reserve' then
  if state ~= 'taken' and state ~= 'later' then
    local refused = fence() or take(value, lease, side, awaited)
    redis.pcall('ZREM', queue, 'guest') -- after the commands that a server without memory refuses
    return refused or token and {'granted', token}
  elseif mode == 'read' then
    pcall(placeGuest)
  end
end

--# read format
local side = 'r'

--# read holder
-- See spring.lua. A writer of the same registry with a smaller number is a grant whose reply was lost: the registry asks for
-- the reader only while none of its owners has the writer, except the one that asks.
local function holder(value)
  mode = redis.call('HGET', key, 'mode')
  if not mode then
    if redis.call('EXISTS', key) == 1 then
      return 'wrong', 'WRONGTYPE the key holds a lock that is no read-write lock'
    end
    return 'free', false, 0
  end
  if redis.call('HEXISTS', key, value) == 1 then
    local own = name .. ':' .. value .. ':rwlock_timeout:1'
    local left = redis.call('PTTL', own)
    if left ~= -2 then
      return 'mine', false, left
    end
    redis.call('EXISTS', key, own) -- fails if the lease is at another node, see rest
    redis.call('HDEL', key, value) -- a grant that is over, while other readers remain
    mode = recompute()
  end
  if not mode then
    return 'free', false, 0
  elseif mode == 'read' then
    return 'free', false
  elseif under ~= '' and redis.call('HEXISTS', key, under .. ':write') == 1 then
    return 'ours', false
  end
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  abandoned = true
  local later = false
  for _, other in ipairs(redis.call('HKEYS', key)) do
    if other ~= 'mode' then
      local n = nil
      if string.sub(other, 1, #registry) == registry then
        n = tonumber(string.match(string.sub(other, #registry + 1), '^(%d+):write$') or '')
      end
      abandoned = abandoned and n and n < tonumber(number) -- mutant: later writer is lost
      later = later or n and n > tonumber(number)
    end
  end
  return abandoned and 'ours' or later and 'later' or 'taken', false
end

--# write format
local side = 'w'

--# write holder
-- See spring.lua. Holds of the same registry with smaller numbers are grants whose replies were lost: the registry asks for the
-- writer only while none of its owners has the lock. They are removed, even if others have the lock.
local function holder(value)
  mode = redis.call('HGET', key, 'mode')
  if not mode and redis.call('EXISTS', key) == 1 then
    return 'wrong', 'WRONGTYPE the key holds a lock that is no read-write lock'
  end
  again = mode and redis.call('HEXISTS', key, value .. ':write') == 1
  local others, later, lost = false, false, {}
  if mode and not again then
    local registry, number = string.match(value, '^(.*:)(%d+)$')
    for _, other in ipairs(redis.call('HKEYS', key)) do
      if other ~= 'mode' then
        local n = nil
        if string.sub(other, 1, #registry) == registry then
          n = tonumber(string.match(string.sub(other, #registry + 1), '^%d+') or '')
        end
        if n and n < tonumber(number) then -- mutant: later hold is lost
          lost[#lost + 1] = other
        else
          others = true -- mutant: writer beside readers
          later = later or n
        end
      end
    end
    for _, other in ipairs(lost) do
      redis.call('HDEL', key, other)
      redis.call('DEL', name .. ':' .. other .. ':rwlock_timeout:1')
    end
    if not others then
      redis.call('DEL', key)
      mode = false
    elseif lost[1] and mode == 'read' then
      mode = recompute() -- the lease of the lost grant no longer counts
      others = mode
    end
  end
  return again and 'mine' or later and 'later' or others and 'taken' or lost[1] and 'ours' or 'free', false, not mode and 0 or nil
end

--# read extend
-- For a reader beside others that has shortened its lease: if it was the longest one, the lock ends with the next one.
local function extend()
  return recompute()
end

--# write extend
-- For writers that want a token; other renewals are short ways.
local function extend(_, lease)
  if redis.call('HLEN', key) == 2 or redis.call('PTTL', key) < tonumber(lease) then
    redis.call('PEXPIRE', key, lease)
  end
  return true
end

--# end
local removed = false -- the hash was removed

-- If the owner of a writer also reads, it goes on reading, and other readers may join. A hash without holders is left to the
-- next holder, or to announce: while its slot is being moved the server would not create it again. Besides the states of
-- holder it returns over: a reader's lease was over, and what was left of the hold is removed.
local function drop(value)
  local own = KEYS[2] or name .. ':' .. value .. ':rwlock_timeout:1'
  local had = side == 'w' or redis.call('DEL', own) == 1 or not rest(own)
  if redis.call('HDEL', key, side == 'w' and value .. ':write' or value) == 0 then
    mode = redis.call('HGET', key, 'mode')
    return not mode and redis.call('EXISTS', key) == 1 and 'wrong' or 'free', false
  elseif redis.call('HLEN', key) > 1 then -- the mode, and other holders
    mode = recompute()
    removed = not mode
  end
  return had and 'mine' or 'over', side == 'w' or not mode
end

-- A writer publishes 1, and, if that has receivers, 0. A client of Redisson wakes on 1 the threads that sleep at this moment. A
-- thread that has just tried in vain and is about to sleep is not among them, and would sleep until the lease that it saw is
-- over. 0 wakes one more thread, or, if none sleeps, the next one that is about to.
local function announce()
  if not mode and not removed then
    redis.call('DEL', key)
  end
  local channel, received = channels .. name, 0
  for _, command in ipairs(channels == '' and {} or sharded and {'SPUBLISH', 'PUBLISH'} or {'PUBLISH'}) do
    received = tonumber(redis.pcall(command, channel, side == 'w' and '1' or '0')) or 0
    if received > 0 and side == 'w' then
      redis.pcall(command, channel, '0')
    end
  end
  return received
end
