-- What spring_release.lua does, in a part that other scripts have, too, for what they do not decide. Those have defined what it is
-- given.
-- include held
local mine, over = held == value, held == value
if held and not mine then
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = nil
  if string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  over = other and other <= tonumber(number)
end
if not mine then
  keep = ''
end
if keep ~= '' then
  redis.call('SET', key, value .. ':atleast', 'PX', keep) -- mutant: kept path is a hold
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
      redis.call('SET', key, other .. '+', 'PX', lease)
      served = true
    end
    local function announce()
      if announced then
        return 0
      end
      announced = true
      local received = publish ~= '' and redis.pcall('PUBLISH', publish .. key, key)
      local old = old ~= '' and redis.pcall('PUBLISH', old, key)
      return (tonumber(received) or 0) + (tonumber(old) or 0)
    end
    local function free() return not served end
    -- include pass
    if ticket ~= '' and ticket ~= '+' then
      -- include leave
      pcall(leave, value, ticket)
      waiting = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    end
    if over then -- mutant: grant not passed on
      local ok, passed, others = pcall(pass, waiting, ticket == '+')
      if ok and passed then
        return mine and 2 or 0
      end
      reply = not ok and (type(passed) == 'table' and passed.err or passed) or others and 2 or 1
    end
  end
end
if not over then
  return keep ~= '' and 1 or held and -1 or 0
end
-- The server's ACL may forbid a user either command, but not both: who may not do the one can do the other.
local removed = redis.pcall(removal, key)
if type(removed) == 'table' and removed.err then
  redis.call(removal == 'UNLINK' and 'DEL' or 'UNLINK', key)
end
if not announced then -- to publish may be forbidden; the lock is released all the same
  if publish ~= '' then
    redis.pcall('PUBLISH', publish .. key, key)
  end
  if old ~= '' then
    redis.pcall('PUBLISH', old, key)
  end
end
return mine and reply or 0
