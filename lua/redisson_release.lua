-- Ends a hold of a lock in Redisson's format, if it still has it: gives the lock to the first who waits in its queue, or
-- removes it and publishes that.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  is for read-write locks
-- ARGV[5]  for the queue, and so on, as ARGV[3] to ARGV[5] of spring_release.lua
-- ARGV[8]  how long the path is to stay taken, in milliseconds; empty or missing: no longer
--
-- Replies 0 when the lock was not the hold's. When it was the reply is 1, 2 when others wait in the queue or one of them
-- has the lock now, or 3 when there can be no queue.
--
-- A field of the same registry with a smaller number is a grant that came late, and is removed too; see spring_release.lua. A
-- path that is to stay taken gets the field "<field>:atleast". That is published, since Redisson's waiters sleep for as long as
-- the lease that they have seen.
local key, field, prefix, sharded = KEYS[1], ARGV[1], ARGV[5] or '', ARGV[6] == 'S'
local mine, ticket = redis.call('HEXISTS', key, field) == 1, ARGV[7] or ''
local over = mine
if not mine and redis.call('HEXISTS', key, 'mode') == 0 then -- of a plain lock there is one holder
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    local n = string.sub(other, 1, #registry) == registry and tonumber(string.sub(other, #registry + 1))
    over = n and n < tonumber(number)
  end
end
local keep = mine and ARGV[8] or ''
if keep ~= '' then -- in this order: a server that is out of memory refuses the first, and then nothing has changed
  redis.call('HSET', key, field .. ':atleast', '1')
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
    reply = waiting.err and 3 or 1
  end
  if waiting and not waiting.err then
    local served = false
    local function own(other, lease)
      redis.call('DEL', key)
      redis.call('HSET', key, other, '1')
      redis.call('PEXPIRE', key, lease)
      served = true
    end
    -- include heir
    local function announce()
      if announced then
        return 0
      end
      announced = true
      local received = ARGV[2] ~= '' and redis.pcall('PUBLISH', ARGV[3], '0')
      if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
        redis.pcall('SPUBLISH', ARGV[3], '0')
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
    if over then
      local ok, passed, others = pcall(pass, waiting, ticket == '+')
      if ok and passed then
        return mine and 2 or 0
      end
      reply = not ok and 3 or others and 2 or 1
    end
  end
end
if over then
  redis.call('DEL', key)
elseif keep == '' then
  return 0
end
if not announced and ARGV[2] ~= '' then -- to publish may be forbidden; the lock is released all the same
  redis.pcall('PUBLISH', ARGV[3], '0')
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', ARGV[3], '0')
  end
end
return mine and reply or 0
