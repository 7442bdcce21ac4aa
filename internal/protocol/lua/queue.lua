-- The queue of the calls that wait for a lock. test/specs/PROTOCOL.md says what it must do, and why in this order.
--
-- It is a sorted set. A ticket is a member "<value>|<lease ms>", for a read-write lock followed by r or w, for a semaphore by p
-- and the number of permits that it asks for. Its score is its place. Each zero in front of the lease doubles the short lease
-- of its grant, up to eight times, for a process that is far away; older versions ignore the zeros. In the queue of a
-- read-write lock a member guest keeps a place for writers without a ticket, see placeGuest in readwrite.lua. Two members with
-- negative scores sort before all tickets. The score of open is minus the end of the newest window in which the key is left to
-- calls without a ticket, or minus the time at which no such call would have been told of a window. The score of wide is minus
-- the end of the newest long window, or minus the time of the release since which long windows are counted; -1 before that.
-- Both are in milliseconds. The fraction of wide says what happened since: .5, a call without a ticket was seen; .25, a long
-- window was put off; .75, both. Older versions ignore the fraction.
--
-- The head of the script has defined key, prefix, and sharded.

--# names
-- The queue is the last key; nil: there is none. A registry gets messages about its queues on a channel, whose name is the
-- following one and the registry's own: see ownChannel in path.go.
local queue = prefix ~= '' and KEYS[#KEYS] or nil
local braced = string.find(key, '{', 1, true)
local slotted = false
if sharded then
  local tag = braced and string.match(key, '^[^{]*{([^}]+)}')
  slotted = tag and string.find(prefix, '^[^{]*{[^}]*$') and key .. '-channel@' or prefix .. '-channel@{' .. (tag or key) .. '}'
end

--# ticket
-- Puts a ticket at the end of a queue in which others waited a moment ago, and replies. If the queue is gone, or the server's
-- clock went back, it changes nothing. The reply says only whether there are tickets in front; a string costs less than an
-- array.
if queues then
  local time, ticket = redis.pcall('TIME'), value .. '|' .. lease
  local place = time[1] and time[1] .. string.sub('00000' .. time[2], -6)
  if place and redis.pcall('ZADD', queue, place, ticket) == 1 then
    local last = redis.pcall('ZRANGE', queue, '-2', '-1') -- it may be forbidden
    if last[2] == ticket then
      return (last[1] == 'open' or last[1] == 'wide') and '0 ' .. place or '1 ' .. place
    end
    redis.pcall('ZREM', queue, ticket)
  end
end

--# direct
-- For a release where others wait all the time: takes the first ticket out of the queue; the format then gives the lock to its
-- hold. It does so only where passOn would do the same, in the same order, and nothing else: no window is open or due, see
-- windows.lua, the ticket's process listens, and no call has waited for so long that it must be told that it is the next one.
-- So windows come when they would come without the short way. In all other cases it changes nothing: if other members are in
-- front, or the server's clock went back, what stands in for a window's age is too large or negative. If a step fails, at most
-- the ticket is gone. Making strings is much of a script's cost, so each is made once. The lease in the ticket is at least a
-- grant's, a second.
local to, registry, number = nil, nil, nil
if direct then
  local first = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
  registry, number = string.match(first[5] or '', '^(.*):(%d+)|[1-9]%d%d%d+$')
  local time = registry and first[1] == 'open' and redis.pcall('TIME')
  direct = false
  if time and time[1] then
    local now = time[1] * 1000 + time[2] / 1000
    local open, wide = now + first[2], now + first[4] -- how long ago the newest windows ended
    direct = open >= 0 and open < 100 and -- mutant: short windows are left out
      (wide < 1700 or quiet and wide < 15000 and first[4] % 1 == 0) and -- mutant: long windows are left out
      now - first[6] / 1000 < 1000 -- mutant: the next one is not told
  end
  local own = direct and (slotted and slotted .. registry or prefix .. '-channel@' .. registry)
  local listening = own and redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', own)[2]
  if listening and listening > 0 and redis.pcall('ZREM', queue, first[5]) == 1 then
    to = own
  end
end

--# given
if to and type(redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', to, 'g ' .. number .. ' 1000 ' .. key)) == 'number' then
  return 2
end
--# trace
-- Notes that the script has seen a call without a ticket: releases with tickets then leave windows more often, see windows.lua.
local function trace()
  local wide = tonumber(redis.pcall('ZSCORE', queue, 'wide'))
  if wide and -wide % 1 < 0.5 then
    redis.pcall('ZADD', queue, 'XX', wide - 0.5, 'wide')
  end
end

--# form
local TICKET = '^(.*):(%d+)|(%d+)([rw]?)$' -- registry, number, lease, kind

--# library
-- Capturing a local in a function costs as much as a short command, so constants are where they are used.
local function channel(registry)
  return (slotted or prefix .. '-channel@') .. registry
end

-- Sends the process of a ticket "<what> <number> <ms> <key>": g, a grant with a lease of ms; n, the ticket is the next one, and
-- may look after ms; for a semaphore d, look now. Older versions send "@" and a time behind the lease of a grant.
local function tell(registry, number, what, ms)
  redis.call(sharded and 'SPUBLISH' or 'PUBLISH', channel(registry), what .. ' ' .. number .. ' ' .. ms .. ' ' .. key)
end

local function warn(member, what, ms)
  local registry, number = string.match(member or '', TICKET)
  if registry then
    tell(registry, number, what, ms)
  end
end

--# heads
local warnAnother -- only for semaphores

-- Removes the first tickets of the queue, up to so many, as far as their processes are gone, but not the ticket mine.
local function sweep(most, mine)
  local members, own, n = {}, {}, 0
  for _, member in ipairs(redis.call('ZRANGE', queue, '0', most + 1)) do
    if member ~= 'open' and member ~= 'wide' then
      local registry = string.match(member, TICKET)
      if not registry or member == mine then
        break
      end
      n = n + 1
      members[n], own[n] = member, channel(registry)
    end
  end
  local heard = n > 0 and redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', unpack(own))
  local gone = 0
  while gone < n and heard[2 * gone + 2] == 0 do -- mutant: living are swept
    gone = gone + 1
  end
  if gone > 0 then
    redis.call('ZREM', queue, unpack(members, 1, gone))
  end
end

-- Returns the first ticket among the first members of the queue, its parts, and its place. It removes tickets in front whose
-- process is gone, but not the ticket mine. A ticket of an unknown form belongs to a newer version, which may serve it; it is
-- removed if its place is before the given time, since its process may be gone. If it is not, its call asks for another one.
--
-- Processes that are gone come in numbers, when machines are lost. So behind the first such ticket more and more are asked for
-- at once.
local function heads(entries, mine, before)
  local most = 1
  while true do
    local first, place = nil, nil
    for i = 1, #entries, 2 do
      if entries[i] ~= 'open' and entries[i] ~= 'wide' then
        first, place = entries[i], entries[i + 1]
        break
      end
    end
    if not first then
      return nil
    end
    local registry, number, lease, kind = string.match(first, TICKET)
    local there = first == 'guest' or tonumber(place) >= (before or 0)
    if registry then
      there = first == mine or
        redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel(registry))[2] > 0 -- mutant: dead are served
    end
    if there then
      return first, registry, number, lease, kind, place
    end
    redis.call('ZREM', queue, first)
    most = math.min(8 * most, 256)
    sweep(most, mine)
    entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
  end
end

--# grant
-- Grants the lock to tickets from the first one on, while it is free for them, up to the ticket mine. It returns the first
-- ticket that it leaves while the lock is free, and the lease of the last grant, if there was one. A ticket is removed before
-- its hold owns the key: a server that is out of memory would refuse only the latter. The messages come last. A ticket that is
-- younger than a second is not told that it is the next one: its call looks soon, see queue.go, and most get the lock before.
-- With very many readers the next one looks at once, and goes on with the readers behind it. See permits.lua for warnAnother.
local function grantNext(micros, mine, first, registry, number, lease, kind, place)
  local SHORT_LEASE = '1000' -- the lease of a grant, until the grantee lengthens it
  local AT_ONCE = 64         -- how many readers one script serves
  local to, what, granted, count, since, many = nil, nil, nil, 0, nil, false
  while first and first ~= mine and registry and free(kind) and count < AT_ONCE do
    count = count + 1
    redis.call('ZREM', queue, first) -- mutant: served ticket stays
    if to then
      tell(to, what, 'g', granted)
    end
    to, what, since = registry, number, place
    granted = tonumber(lease) < tonumber(SHORT_LEASE) and lease or SHORT_LEASE -- mutant: grant of a whole lease
    if string.byte(lease) == 48 then -- a zero
      granted = math.min(tonumber(lease), SHORT_LEASE * 2 ^ math.min(3, #string.match(lease, '^0+')))
    end
    many = string.byte(kind) == 112 -- a p: there is a ticket for each call of a process, which may stand still
    local refused = take(registry .. ':' .. number, granted, kind, lease)
    if refused then
      error(refused)
    end
    if free('r') then -- other readers, or holders of other permits
      first, registry, number, lease, kind, place = heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES'), mine)
    else
      first, registry = nil, nil
    end
  end
  if to then
    local goesOn = registry and first ~= mine and free(kind)
    if goesOn then
      warn(first, 'n', 0)
    end
    if many and (goesOn or micros - since >= 1000000) then
      warnAnother(goesOn and registry or to, mine, granted) -- mutant: nobody else is told
    elseif not goesOn and micros - since >= 1000000 then -- the tickets behind it may be as old
      local next = redis.call('ZRANGEBYSCORE', queue, 0, micros - 1000000, 'LIMIT', 0, 1)[1]
      if next and next ~= mine then
        warn(next, 'n', granted)
      end
    end
    tell(to, what, 'g', granted)
  end
  return first, granted
end
