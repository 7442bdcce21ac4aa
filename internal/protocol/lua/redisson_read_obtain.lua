-- Lets a hold read under a read-write lock in Redisson's format, if nobody else writes. If told so, waits in its queue.
--
-- KEYS[1]  the lock's name: a hash of the mode, 'read' or 'write', and a field with a count per holder
-- ARGV[1]  the hold's field, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the name as it stands in derived keys. "<this>:<field>:rwlock_timeout:<n>" lives as long as the n-th lease of a
--          reader, so that the hash can be kept for as long as the longest one
-- ARGV[4]  the field of the hold with which the same owner writes already, less ':write'; or empty
-- ARGV[5]  and so on, and the reply: as those of redisson_obtain.lua; or try, not to overtake those who wait in the queue
--
-- Replies nil when granted, else without a queue the milliseconds that the lock has left (-1: it has no end).
-- include effects
local key, field, name, how = KEYS[1], ARGV[1], ARGV[3], ARGV[5] or ''
local mode, own = redis.call('HGET', key, 'mode'), name .. ':' .. field .. ':rwlock_timeout:1'
-- include grant
if not mode and redis.call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local left, lost, late = mode and redis.call('PTTL', key) or 0, false, false
local under = mode == 'write' and (ARGV[4] or '') ~= '' and redis.call('HEXISTS', key, ARGV[4] .. ':write') == 1
if mode == 'write' and not under then
  -- A writer of the same registry with a smaller number is a grant whose reply was lost: the registry asks to read only
  -- while none of its own owners writes, but for the one above.
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  lost = true
  for _, other in ipairs(redis.call('HKEYS', key)) do
    if other ~= 'mode' then
      local n = nil
      if string.sub(other, 1, #registry) == registry then
        n = tonumber(string.match(string.sub(other, #registry + 1), '^(%d+):write$') or '')
      end
      lost = lost and n and n < tonumber(number) -- mutant: later writer is lost
      late = late or n and n > tonumber(number)
    end
  end
end
if lost then
  -- First what may be refused: the abandoned grant stays as it was then.
  redis.call('SET', own, '1', 'PX', ARGV[2])
  redis.call('DEL', key)
  mode = false
end
if how == '' or how == 'try' then
  local waits = false
  if how == 'try' and mode == 'read' then
    local prefix = ARGV[6]
    -- include names
    local first = redis.pcall('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    waits = first[1]
    if waits == 'guest' then
      -- include chance
      local time = redis.pcall('TIME')
      local now = time[1] and time[1] * 1000 + math.floor(time[2] / 1000)
      if not now or stale(first[2], now) then
        waits = now and not pcall(dismiss, now)
      end
    end
  end
  if (not mode or mode == 'read' or under) and not waits then -- mutant: reader beside a writer
    return grant(field, ARGV[2], 'r')
  end
  return left
end
if late then
  return {'refused'}
end
local prefix, sharded = ARGV[6], ARGV[7] == 'S'
-- include names
local mine = -2
if redis.call('HEXISTS', key, field) == 1 then
  mine = redis.call('PTTL', own)
  if mine == -2 then -- a grant that is over, while others read on
    -- include settle
    redis.call('HDEL', key, field)
    mode = settle()
  end
end
local member = field .. '|' .. (ARGV[11] or '') .. ARGV[2] .. 'r'
if under or lost or mine ~= -2 then
  redis.pcall('ZREM', queue, member)
  if (ARGV[9] or '') ~= '' then
    redis.pcall('ZREM', queue, ARGV[9])
  end
  if mine ~= -2 then
    return {'owner', mine}
  end
  return grant(field, ARGV[2], 'r')
end
-- include admit
-- include ask
-- Whether a holder is Redisson's does not show.
left = mode and redis.call('PTTL', key) or 0
local ok, reply = pcall(ask, member, field, ARGV[2], 'r', how, ARGV[8] or '', ARGV[9] or '', left, false)
if not ok then
  return {'error', type(reply) == 'table' and reply.err or reply}
end
return reply
