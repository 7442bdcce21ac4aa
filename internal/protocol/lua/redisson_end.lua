-- What redisson_release.lua does, in a part that another script has, too, for what it does not decide. That one has defined what it is
-- given.
local mine = redis.call('HEXISTS', key, field) == 1
local over = mine
if not mine and redis.call('HEXISTS', key, 'mode') == 0 then -- of a plain lock there is one holder
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    local n = string.sub(other, 1, #registry) == registry and tonumber(string.sub(other, #registry + 1))
    over = n and n < tonumber(number)
  end
end
if not mine then
  keep = ''
end
if keep ~= '' then -- in this order: a server that is out of memory refuses the first, and then nothing has changed
  redis.call('HSET', key, field .. ':atleast', '1') -- mutant: kept path is a hold, Redisson
  redis.call('HDEL', key, field)
  redis.call('PEXPIRE', key, keep)
  over = false -- for all that follows nothing is released
end
local announced = false
local reply = 1
if prefix ~= '' and (over or ticket ~= '') then
  -- include names
  local waiting = nil
  if ticket == '+' or redis.pcall('EXISTS', queue) ~= 0 then
    waiting = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    reply = waiting.err or 1
  end
  if waiting and not waiting.err then
    local served = false
    local function own(other, lease)
      redis.call('DEL', key)
      redis.call('HSET', key, other, '1')
      redis.call('PEXPIRE', key, lease)
      served = true
    end
    local function announce()
      if announced then
        return 0
      end
      announced = true
      local received = command ~= '' and redis.pcall('PUBLISH', news, '0')
      if command == 'SPUBLISH' then -- to which Redisson listens in a cluster
        redis.pcall('SPUBLISH', news, '0')
      end
      return tonumber(received) or 0
    end
    local function free() return not served end
    -- include pass
    if ticket ~= '' and ticket ~= '+' then
      -- include leave
      pcall(leave, field, ticket)
      waiting = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    end
    if over then -- mutant: grant not passed on, Redisson
      local ok, passed, others = pcall(pass, waiting, ticket == '+')
      if ok and passed then
        return mine and 2 or 0
      end
      reply = not ok and (type(passed) == 'table' and passed.err or passed) or others and 2 or 1
    end
  end
end
if over then
  redis.call('DEL', key)
elseif keep == '' then
  return -redis.call('EXISTS', key)
end
if not announced and command ~= '' then -- to publish may be forbidden; the lock is released all the same
  redis.pcall('PUBLISH', news, '0')
  if command == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', news, '0')
  end
end
return mine and reply or 0
