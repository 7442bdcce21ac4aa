-- Lets a hold write under a read-write lock in Redisson's format, if nobody else reads or writes. If told so, waits in its
-- queue.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, "<registry>:<number>", less ':write'
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the name as it stands in derived keys
-- ARGV[4]  is for readers
-- ARGV[5]  and so on, and the reply: as those of redisson_obtain.lua; or reserve, to wait without a ticket
--
-- Replies nil when granted, or "granted" and the token, else without a queue the milliseconds that the lock has left (-1: it has no end).
-- include effects
local key, value, name, how, counter = KEYS[1], ARGV[1], ARGV[3], ARGV[5] or '', ARGV[10] or ''
-- include draw
-- include fence
local field = value .. ':write'
local mode = redis.call('HGET', key, 'mode')
-- include grant
if not mode and redis.call('EXISTS', key) == 1 then
  return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local again = mode and redis.call('HEXISTS', key, field) == 1
local others, late, lost = false, false, {}
if mode and not again then
  -- Holds of the same registry with smaller numbers are grants whose replies were lost: the registry asks to write only
  -- while none of its own owners has the lock.
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
        late = late or n
      end
    end
  end
  for _, other in ipairs(lost) do
    redis.call('HDEL', key, other)
    redis.call('DEL', name .. ':' .. other .. ':rwlock_timeout:1')
  end
  if others and mode == 'read' and #lost > 0 then
    -- include settle
    mode = settle() -- the lease of one of the lost counts no more
    others = mode
  elseif not others then
    redis.call('DEL', key)
    mode = false
  end
end
if how == '' or how == 'reserve' then
  if how == 'reserve' then
    local prefix = ARGV[6]
    -- include names
    -- include chance
    -- include guest
    if not others then
      redis.pcall('ZREM', queue, 'guest')
    elseif mode == 'read' then
      pcall(invite)
    end
  end
  if others then
    return redis.call('PTTL', key)
  end
  local refused = fence()
  if refused then
    return refused
  end
  if again and redis.call('PTTL', key) >= tonumber(ARGV[2]) then
    return granted() -- a second grant of the same hold, which comes late: its owner may read under it, for longer
  end
  return grant(value, ARGV[2], 'w') or granted()
end
local prefix, sharded = ARGV[6], ARGV[7] == 'S'
-- include names
if late then
  return {'refused'}
end
local member = value .. '|' .. (ARGV[11] or '') .. ARGV[2] .. 'w'
if again or #lost > 0 and not others then
  redis.pcall('ZREM', queue, member)
  if (ARGV[9] or '') ~= '' then
    redis.pcall('ZREM', queue, ARGV[9])
  end
  if again then
    return {'owner', redis.call('PTTL', key)}
  end
  return fence() or grant(value, ARGV[2], 'w') or granted()
end
-- include admit
local make = own
local function own(other, lease, kind)
  local refused = other == value and fence()
  if refused then
    error(refused)
  end
  make(other, lease, kind)
end
-- include ask
-- Whether a holder is Redisson's does not show.
local left = mode and redis.call('PTTL', key) or 0
local ok, reply = pcall(ask, member, value, ARGV[2], 'w', how, ARGV[8] or '', ARGV[9] or '', left, false)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or granted()
