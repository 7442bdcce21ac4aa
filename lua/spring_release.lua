-- Ends a hold, if its key still belongs to it: gives the key to the first who waits in the lock's queue, or removes it and
-- publishes that.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  what the name of the key's channel begins with; empty or missing: publish nothing
-- ARGV[3]  the registry's prefix; empty or missing: there is no queue
-- ARGV[4]  S on a cluster
-- ARGV[5]  the ticket of a call that leaves the queue; *: all of its registry up to this number; +: no ticket, but others
--          wait in the process that releases, and are not to have it at once; !: none, and no long window; empty: none
-- ARGV[6]  the command that removes a key; empty or missing: UNLINK
-- ARGV[7]  one more channel to publish on; empty or missing: none
-- ARGV[8]  how long the path is to stay taken, in milliseconds; empty or missing: no longer
--
-- Replies 0 when the key was not the hold's. When it was the reply is 1, 2 when others wait in the queue or one of them has
-- the key now, or 3 when there can be no queue.
--
-- A value of the same registry with a smaller number is a grant that came late, as in spring_obtain.lua. The registry asks
-- for this removal only when all holds of the path up to this one are over, so nobody uses it, and it is removed too.
--
-- A path that is to stay taken gets the value "<value>:atleast": no registry takes that for one of its own, since no number
-- follows the last colon. Nobody is granted the lock, or told that it is free: who waits sees that the lease has changed.
local key, value, prefix, sharded = KEYS[1], ARGV[1], ARGV[3] or '', ARGV[4] == 'S'
local held = redis.call('GET', key)
local mine, over = held == value, held == value
if held and not mine then
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = nil
  if string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  over = other and other <= tonumber(number)
end
local publish, ticket, keep = ARGV[2] or '', ARGV[5] or '', mine and ARGV[8] or ''
if keep ~= '' then
  redis.call('SET', key, value .. ':atleast', 'PX', keep)
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
      redis.call('SET', key, other, 'PX', lease)
      served = true
    end
    -- include heir
    local function announce()
      if announced then
        return 0
      end
      announced = true
      local received = publish ~= '' and redis.pcall('PUBLISH', publish .. key, key)
      local old = (ARGV[7] or '') ~= '' and redis.pcall('PUBLISH', ARGV[7], key)
      return (tonumber(received) or 0) + (tonumber(old) or 0)
    end
    local function free() return not served end
    -- include pass
    if ticket ~= '' and ticket ~= '+' then
      -- include leave
      pcall(leave, value, ticket)
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
if not over then
  return keep ~= '' and 1 or 0
end
-- The server's ACL may forbid a user either command, but not both: who may not do the one can do the other.
local removal = (ARGV[6] or '') ~= '' and ARGV[6] or 'UNLINK'
local removed = redis.pcall(removal, key)
if type(removed) == 'table' and removed.err then
  redis.call(removal == 'UNLINK' and 'DEL' or 'UNLINK', key)
end
if not announced then -- to publish may be forbidden; the lock is released all the same
  if publish ~= '' then
    redis.pcall('PUBLISH', publish .. key, key)
  end
  if ARGV[7] and ARGV[7] ~= '' then
    redis.pcall('PUBLISH', ARGV[7], key)
  end
end
return mine and reply or 0
