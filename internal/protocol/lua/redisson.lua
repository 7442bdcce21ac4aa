-- The format of Redisson's RLock and RFencedLock: a hash with a field for the holder, whose count is 1. A holder of Redisson
-- looks the same.

--# obtain
local holders = redis.call('HKEYS', key)
if not holders[1] and counter == '' then
  redis.call('HSET', key, value, '1')
  if type(redis.pcall('PEXPIRE', key, lease)) == 'number' then
    return nil
  end
  redis.call('DEL', key) -- it is forbidden
elseif asks == '' and holders[1] and not holders[2] and
  string.find(holders[1], string.match(value, '^(.*:)'), 1, true) ~= 1 and holders[1] ~= 'mode' then
  return redis.call('PTTL', key)
end

--# obtain queued
if asks == '' then
  local holders = redis.call('HKEYS', key)
  queues = holders[1] and not holders[2] and holders[1] ~= 'mode' and
    string.find(holders[1], string.match(value, '^(.*:)'), 1, true) ~= 1
end

--# renew
if redis.call('HEXISTS', key, value) == 0 then
  return -redis.call('EXISTS', key)
elseif counter == '' then
  if lease ~= '' then
    redis.call('PEXPIRE', key, lease)
  end
  return 1
end

--# release alone
local function releaseAlone(key, value, queue)
  if queue and redis.pcall('EXISTS', queue) ~= 0 then -- mutant: waiting calls are passed over
    return false
  end
  local holders = redis.pcall('HKEYS', key)
  if holders[1] ~= value or holders[2] or redis.pcall('DEL', key) ~= 1 then
    return false
  end
  if channels ~= '' then
    local channel = channels .. (string.find(key, '{', 1, true) and key or '{' .. key .. '}')
    redis.pcall('PUBLISH', channel, '0')
    if sharded then -- Redisson listens there in a cluster
      redis.pcall('SPUBLISH', channel, '0')
    end
  end
  return true
end

--# release queued
if plain then
  local holders = redis.call('HKEYS', key)
  local alone = holders[1] == value and not holders[2]
  direct = alone and prefix ~= ''
  if alone and (prefix == '' or redis.pcall('EXISTS', queue) == 0) then
    redis.call('DEL', key)
    if channels ~= '' then -- publishing may be forbidden; the lock is released all the same
      local channel = channels .. (braced and key or '{' .. key .. '}')
      redis.pcall('PUBLISH', channel, '0')
      if sharded then -- Redisson listens there in a cluster
        redis.pcall('SPUBLISH', channel, '0')
      end
    end
    return 1
  end
end

--# give
local next, gave = to and registry .. ':' .. number, false -- see take for the order
if to and type(redis.pcall('HSET', key, next, '1')) == 'table' then
  to = nil
end
if to then
  if type(redis.pcall('HDEL', key, value)) == 'table' then
    redis.call('DEL', key)
    redis.call('HSET', key, next, '1')
  end
  gave = true
  if type(redis.pcall('PEXPIRE', key, '1000')) == 'table' then -- it is forbidden
    to = nil
  end
end

--# take back
if gave then
  redis.call('HSET', key, value, '1')
  if type(redis.pcall('HDEL', key, next)) == 'table' then
    redis.call('DEL', key)
    redis.call('HSET', key, value, '1')
  end
  redis.pcall('PEXPIRE', key, '1000')
end

--# format
local side, taken = '', false
local found = nil -- the fields of a release's key

-- See spring.lua. Besides a later hold's field, a field of the same registry is left from an older hold.
local function holder(value)
  local fields = redis.call('HKEYS', key)
  if not fields[1] then
    return 'free', false, -2
  elseif fields[1] == value and not fields[2] then
    return 'mine', false
  end
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local mine, others, later = false, false, false
  for _, field in ipairs(fields) do
    local n = string.sub(field, 1, #registry) == registry and tonumber(string.sub(field, #registry + 1))
    if field == 'mode' then
      taken = true
      return 'wrong', 'WRONGTYPE the key holds a read-write lock'
    elseif field == value then
      mine = true
    elseif not (n and n < tonumber(number)) then -- mutant: late grant wins, Redisson
      others, later = true, later or n
    end
  end
  taken = others and (later or not mine)
  return later and 'later' or mine and 'mine' or others and 'taken' or 'ours', false
end

-- A hash without a lease would stay forever. After a removal a server without memory would refuse nothing, and a server that
-- moves the slot away would not create the key again: so what older holds have left is removed only after the field is set.
local function take(value, lease)
  redis.call('HSET', key, value, '1')
  for _, field in ipairs(found or redis.call('HKEYS', key)) do
    if field ~= value and type(redis.pcall('HDEL', key, field)) == 'table' then
      redis.call('DEL', key) -- HDEL is forbidden
      redis.call('HSET', key, value, '1')
      break
    end
  end
  local done = redis.pcall('PEXPIRE', key, lease)
  if type(done) == 'table' then -- refused, by the user's permissions
    redis.call('DEL', key)
    return done
  end
  taken = true
end

local function free()
  return not taken
end

--# extend
local function extend(_, lease)
  return redis.call('PEXPIRE', key, lease) == 1
end

--# end
local function publish()
  local channel = channels .. (braced and key or '{' .. key .. '}')
  local received = channels ~= '' and redis.pcall('PUBLISH', channel, '0')
  if channels ~= '' and sharded then
    redis.pcall('SPUBLISH', channel, '0')
  end
  return tonumber(received) or 0
end

local function announce()
  redis.call('DEL', key)
  return publish()
end

-- A path that AtLeast keeps gets the field "<value>:atleast". That is published, since Redisson's waiters sleep for the lease
-- that they have seen. A server without memory refuses the first command, and then nothing has changed. If the second one is
-- forbidden, what the first one did is undone.
local function drop(value, keep)
  found = redis.call('HKEYS', key)
  local state = found[1] == value and not found[2] and 'mine' or holder(value)
  if state == 'mine' and keep ~= '' then
    redis.call('HSET', key, value .. ':atleast', '1') -- mutant: kept path is a hold, Redisson
    if type(redis.pcall('PEXPIRE', key, keep)) == 'table' then -- it is forbidden
      redis.call('HDEL', key, value .. ':atleast')
      redis.call('PEXPIRE', key, keep) -- says so
    end
    if type(redis.pcall('HDEL', key, value)) == 'table' then -- it is forbidden
      redis.call('DEL', key)
      redis.call('HSET', key, value .. ':atleast', '1')
      redis.call('PEXPIRE', key, keep)
    end
    taken = true
    publish()
    return state, false
  end
  return state, state == 'mine' or state == 'ours'
end

--# draw
-- Draws from the counter of Redisson's RFencedLock, which adds one for each token. Redisson gives the counter an end together with
-- the lock's lease when a program calls expire, or locks several at once with a lease. Then the next token would be 1 again.
local function draw()
  local last = redis.pcall('INCRBY', counter, 100) -- mutant: tokens drawn twice
  if type(last) ~= 'table' then
    redis.pcall('PERSIST', counter)
  end
  return type(last) == 'table' and last or last - 99
end
