-- Makes a hold the owner of a lock, if nobody else holds it. If told so, waits in its queue.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  with a queue: queue, to get a ticket; look, to look after it; due, to look because its time has come
-- ARGV[4]  the registry's prefix
-- ARGV[5]  S on a cluster
-- ARGV[6]  queue: the place where the ticket was, or empty
-- ARGV[7]  queue: an older ticket of this call, which it replaces, or empty
-- ARGV[8]  the key of the fencing counter; empty or missing: no token is wanted
--
-- Replies nil when granted, or "granted" and the token. Else without a queue the milliseconds that the holder's lease has left (-1: it has no end), and
-- with one an array: "queued", those milliseconds, how many tickets are in front, the place, and 1 when the holder may not
-- know of the queue; "owner" and the milliseconds: the hold has the key; "missing": the ticket is not there; "refused": this
-- command is late; "error" and why there is no queue.
--
-- A value of the same registry with a smaller number is a grant whose reply was lost: the registry only asks while
-- it has the path to itself, so nobody uses that hold, and this one takes over. A larger number can only mean that
-- this very command was delayed until after a later hold: it must not win.
local key, value, how, counter = KEYS[1], ARGV[1], ARGV[3] or '', ARGV[8] or ''
-- include draw
-- include fence
local held = redis.call('GET', key)
local taken = false
if held and held ~= value then
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = nil
  if string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  taken = not other or other > tonumber(number)
  if taken and how == '' then
    return redis.call('PTTL', key)
  elseif taken and other then
    return {'refused'}
  end
end
if how == '' then
  local refused = fence()
  if refused then
    return refused
  end
  redis.call('SET', key, value, 'PX', ARGV[2])
  return granted()
end
local prefix, sharded = ARGV[4], ARGV[5] == 'S'
-- include names
local member = value .. '|' .. ARGV[2]
if held and not taken then
  redis.pcall('ZREM', queue, member)
  if (ARGV[7] or '') ~= '' then
    redis.pcall('ZREM', queue, ARGV[7])
  end
  if held == value then
    return {'owner', redis.call('PTTL', key)}
  end
  local refused = fence()
  if refused then
    return refused
  end
  redis.call('SET', key, value, 'PX', ARGV[2])
  return granted()
end
local function free() return not taken end
local function own(other, milliseconds)
  local refused = other == value and fence()
  if refused then
    error(refused)
  end
  redis.call('SET', key, other, 'PX', milliseconds)
  taken = true
end
-- include ask
local foreign = held and not string.find(held, ':%d+$')
local ok, reply = pcall(ask, value, ARGV[2], '', how, ARGV[6] or '', ARGV[7] or '', redis.call('PTTL', key), foreign)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or granted()
