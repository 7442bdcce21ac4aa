-- Makes a hold the owner of a lock in Redisson's format, if nobody else holds it. If told so, waits in its queue.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3], ARGV[4]  are for read-write locks
-- ARGV[5]  and so on, and the reply: for the queue, and ARGV[10] for the token, as ARGV[3] and so on of spring_obtain.lua
--
-- Replies nil when granted, or "granted" and the token, else without a queue the milliseconds that the holder's lease has left (-1: it has no end).
--
-- A field of the same registry with a smaller number is a grant whose reply was lost, and is taken over; a larger number
-- means that this very command is late.
local key, field, how, counter = KEYS[1], ARGV[1], ARGV[5] or '', ARGV[10] or ''
-- include redisson_draw
-- include fence
if redis.call('HEXISTS', key, 'mode') == 1 then
  return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
local function own(other, lease)
  local refused = other == field and fence()
  if refused then
    return refused
  end
  redis.call('DEL', key)
  redis.call('HSET', key, other, '1')
  local done = redis.pcall('PEXPIRE', key, lease)
  if type(done) == 'table' then -- refused, by the user's permissions: a hash without a lease would stay for ever
    redis.call('DEL', key)
    return done
  end
end
local taken, holder, mine = false, nil, redis.call('HEXISTS', key, field) == 1
if not mine and redis.call('EXISTS', key) == 1 then
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    local n = nil
    if string.sub(other, 1, #registry) == registry then
      n = tonumber(string.sub(other, #registry + 1))
    end
    holder = other
    if not n or n > tonumber(number) then
      if how == '' then
        return redis.call('PTTL', key)
      elseif n then
        return {'refused'}
      end
      taken = true
      break
    end
  end
end
if how == '' then
  return own(field, ARGV[2]) or granted()
end
local prefix, sharded = ARGV[6], ARGV[7] == 'S'
-- include names
if mine or holder and not taken then
  redis.pcall('ZREM', queue, field .. '|' .. ARGV[2])
  if (ARGV[9] or '') ~= '' then
    redis.pcall('ZREM', queue, ARGV[9])
  end
  if mine then
    return {'owner', redis.call('PTTL', key)}
  end
  return own(field, ARGV[2]) or granted()
end
local function free() return not taken end
local make = own
local function own(other, lease)
  local refused = make(other, lease)
  if refused then
    error(refused)
  end
  taken = true
end
-- include ask
-- Whether the holder is Redisson's does not show.
local ok, reply = pcall(ask, field, ARGV[2], '', how, ARGV[8] or '', ARGV[9] or '', redis.call('PTTL', key), false)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or granted()
