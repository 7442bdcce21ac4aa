-- The format of Spring Integration's RedisLockRegistry: a string whose value names the holder. A + behind the value is the
-- mark: others wait, or did. The release of a value without it does not look for a queue.

--# obtain
local held = redis.call('GET', key)
if not held and counter == '' then
  redis.call('SET', key, value, 'PX', lease)
  return nil
elseif held and asks == '' and string.find(held, string.match(value, '^(.*:)'), 1, true) ~= 1 then
  return redis.call('PTTL', key)
end

--# obtain together
-- None of the keys is there. The stack of Lua need not have room for a thousand.
if not KEYS[n + 1] and n <= 100 and redis.pcall('EXISTS', unpack(KEYS, 1, n)) == 0 then -- mutant: together over others
  local tokens = {}
  for i = 1, n do
    redis.call('SET', KEYS[i], ARGV[5 + i], 'PX', ARGV[2])
    tokens[i] = 0
  end
  return tokens
end

--# obtain queued
if asks == '' then
  local held = redis.call('GET', key)
  if held then -- mutant: key taken in passing
    queues = string.sub(held, -1) == '+' and string.find(held, string.match(value, '^(.*:)'), 1, true) ~= 1
  elseif counter == '' then
    local first = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES') -- the first two are no tickets, see queue.lua
    if not first[5] and not first.err then
      local time = redis.pcall('TIME')
      if time[1] and time[1] * 1000 + math.floor(time[2] / 1000) >= -(first[2] or 0) then -- otherwise a window is open
        redis.call('SET', key, value .. '+', 'PX', lease)
        return nil
      end
    end
  end
end

--# renew
local held = redis.call('GET', key)
if held ~= value and held ~= value .. '+' then
  return held and -1 or 0
elseif counter == '' then
  if lease ~= '' then
    redis.call('PEXPIRE', key, lease)
  end
  return 1
end

--# release
local held = redis.call('GET', key)
if held == value and plain then -- mutant: anybody's key removed
  if redis.pcall('UNLINK', key) == 1 then
    if channels ~= '' then -- publishing may be forbidden; the lock is released all the same
      redis.pcall('PUBLISH', channels .. key, key)
    end
    return 1
  end
end

--# release together
-- The hold has each of the locks, and nobody waits: else each is looked at by itself.
local all = n <= 100
for i = 1, n do
  all = all and redis.pcall('GET', KEYS[i]) == ARGV[5 + i] -- mutant: released with others
end
if all and type(redis.pcall(removal == 'DEL' and 'DEL' or 'UNLINK', unpack(KEYS, 1, n))) == 'number' then
  local released = {}
  for i = 1, n do
    if channels ~= '' then -- publishing may be forbidden; the locks are released all the same
      redis.pcall('PUBLISH', channels .. KEYS[i], KEYS[i])
    end
    if old ~= '' then
      redis.pcall('PUBLISH', old, KEYS[i])
    end
    released[i] = 1
  end
  return released
end

--# release alone
local function releaseAlone(key, value)
  if redis.pcall('GET', key) ~= value then -- mutant: released whoever has it
    return false
  end
  if redis.pcall(removal == 'DEL' and 'DEL' or 'UNLINK', key) ~= 1 then
    return false
  end
  if channels ~= '' then
    redis.pcall('PUBLISH', channels .. key, key)
  end
  if old ~= '' then
    redis.pcall('PUBLISH', old, key)
  end
  return true
end

--# release queued
direct = plain and prefix ~= '' and held == value .. '+'

--# give
if to and redis.pcall('SET', key, registry .. ':' .. number .. '+', 'PX', '1000').err then
  to = nil
end

--# take back
if to then -- the message was forbidden
  redis.pcall('SET', key, held, 'PX', '1000')
end

--# format
local side, taken, held = '', false, nil

-- Returns the state of the lock for the hold with a value: free; mine; ours, an older hold of the same registry has it; later,
-- a later one has it; or taken. Then whether others wait, the rest of the holder's lease, if known, and whether the holder may
-- not know of the queue: kept, if the lock was released and AtLeast keeps its path. Or, in other formats, wrong: the key is not
-- such a lock; then the error.
local function holder(value)
  held = redis.call('GET', key)
  if not held then
    return 'free', false, -2
  end
  local marked = string.sub(held, -1) == '+'
  if marked then
    held = string.sub(held, 1, -2)
  end
  if held == value then
    return 'mine', marked
  end
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = string.sub(held, 1, #registry) == registry and tonumber(string.sub(held, #registry + 1))
  if other and other <= tonumber(number) then -- mutant: late grant wins
    return 'ours', marked
  end
  taken = true
  if other then
    return 'later', marked
  end
  return 'taken', marked, nil, not string.find(held, ':%d+$') and (string.find(held, ':atleast$') and 'kept' or true)
end

-- Makes a hold the owner. Returns the error if that is refused.
local function take(value, lease, _, waited)
  redis.call('SET', key, waited and value .. '+' or value, 'PX', lease)
  taken = true
end

local function free()
  return not taken
end

--# mark
-- For a call that waits with a ticket: sets the mark in the holder's value. Java does not know the mark, nor do versions whose
-- holds had short numbers. If that is refused, a release does not wake waiting calls, but tracking does.
if not awaited and string.find(held or '', ':%d%d%d%d%d%d%d%d%d%d%d%d%d%d+$') and
  (asks == 'enqueue' or type(redis.pcall('ZSCORE', queue, member)) == 'string') then -- without the ticket the look is late
  redis.pcall('SET', key, held .. '+', 'XX', 'KEEPTTL')
end

--# extend
-- Renews the lease of the hold that is the owner. Returns whether it still is.
local function extend(_, lease)
  return redis.call('PEXPIRE', key, lease) == 1
end

--# end
-- Ends a hold: its key goes to the next grant, or see announce. A path that AtLeast keeps gets the value "<value>:atleast": no
-- registry takes that for one of its own values, since no number follows the last colon. The lock is not granted or announced
-- then: waiting calls see the changed lease. Returns the state of the hold, see holder, and whether the lock is free now.
local function drop(value, keep)
  local state = holder(value)
  if state == 'mine' and keep ~= '' then
    redis.call('SET', key, value .. ':atleast', 'PX', keep) -- mutant: kept path is a hold
    taken = true
    return state, false
  end
  return state, state == 'mine' or state == 'ours'
end

-- Removes the key of a lock that was not granted, and publishes that. Publishing may be forbidden; the lock is released all the
-- same. The user may lack permission for one of the two removal commands, but not for both. Returns how many subscribers got
-- the message.
local function announce()
  local removed = redis.pcall(removal == 'DEL' and 'DEL' or 'UNLINK', key)
  if type(removed) == 'table' and removed.err then
    redis.call(removal == 'DEL' and 'UNLINK' or 'DEL', key)
  end
  local received = channels ~= '' and redis.pcall('PUBLISH', channels .. key, key)
  local before = old ~= '' and redis.pcall('PUBLISH', old, key) -- for older versions of Spring
  return (tonumber(received) or 0) + (tonumber(before) or 0)
end
