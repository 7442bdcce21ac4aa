-- The queue of those who wait for a lock: a part of the scripts that obtain and release it, see script.go. See
-- specs/PROTOCOL.md for what it has to do, and why in this order.
--
-- A ticket is a member of the sorted set queue, "<value>|<lease ms>", of a read-write lock with an r or a w behind it. Its
-- score is its place. Two members with negative scores sort before all tickets: open, minus the end of the newest window in
-- which the key is left to those without a ticket, and wide, minus that of the newest long one, in milliseconds.
--
-- The script has defined
--   key, prefix, sharded, queue, tag   see names.lua
--   free(kind)                         whether the lock is free for a ticket of that kind
--   own(value, lease, kind)            makes a hold its owner
--   announce()                         to release: publishes that the lock is free, and returns how many were told
local PROVISIONAL = 1000      -- the lease of a grant, until the grantee lengthens it
local WIDE, RARELY = 110, 1700 -- a window in which who tries each 100 ms has its chance, and how rarely there is one
local SHORT, OFTEN = 10, 100  -- the same for who is told of releases
local STEP = 100              -- how much longer than the one in front of it who waits leaves a free key alone

local open, wide = 0, 0
local tickets, more = {}, true -- the first ones, and whether there may be others

local function channel(registry)
  if sharded then
    return prefix .. '-channel@{' .. (tag or key) .. '}' .. registry
  end
  return prefix .. '-channel@' .. registry
end

local function parse(member)
  local value, registry, number, lease, kind = string.match(member, '^((.*):(%d+))|(%d+)([rw]?)$')
  return {member = member, value = value, registry = registry, number = number, lease = tonumber(lease), kind = kind}
end

-- What it tells is "<what> <number> <ms> <key>": g for a grant with a lease of so long; n that the ticket is the next one,
-- and may look when so long is over; d that it was taken out.
local function tell(ticket, what, ms)
  if ticket and ticket.value then
    redis.call(sharded and 'SPUBLISH' or 'PUBLISH', channel(ticket.registry),
      what .. ' ' .. ticket.number .. ' ' .. ms .. ' ' .. key)
  end
end

local function subscribed(registry)
  return redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel(registry))[2] > 0
end

local function fetch(entries)
  tickets, more = {}, #entries == 8
  for i = 1, #entries, 2 do
    if entries[i] == 'open' then
      open = -tonumber(entries[i + 1])
    elseif entries[i] == 'wide' then
      wide = -tonumber(entries[i + 1])
    else
      tickets[#tickets + 1] = parse(entries[i])
    end
  end
end

-- The first ticket whose process is there. Those in front of it are removed. One of a form that this script does not know
-- belongs to a newer version.
local function head(mine)
  while true do
    if #tickets == 0 and more then
      fetch(redis.call('ZRANGE', queue, 0, 3, 'WITHSCORES'))
    end
    local ticket = tickets[1]
    if not ticket or not ticket.value or ticket.member == mine or subscribed(ticket.registry) then
      return ticket
    end
    redis.call('ZREM', queue, ticket.member)
    table.remove(tickets, 1)
  end
end

-- Serves tickets from the first one on, for as long as the lock is free for them. It returns the first one that it leaves
-- there, and whether it served any. A ticket is removed before its hold owns the key: where the server is out of memory, the
-- latter alone would be refused.
local function serve(mine)
  local served, last = false, nil
  local first = head(mine)
  while first and first.value and first.member ~= mine and free(first.kind) do
    local lease = math.min(first.lease, PROVISIONAL)
    redis.call('ZREM', queue, first.member)
    table.remove(tickets, 1)
    own(first.value, lease, first.kind)
    served = true
    if last then
      tell(last, 'g', last.granted)
    end
    last = first
    last.granted = lease
    first = head(mine)
  end
  if last then
    if first and first.member ~= mine then
      tell(first, 'n', last.granted)
    end
    tell(last, 'g', last.granted)
  end
  return first, served
end

local function clock()
  if redis.replicate_commands then -- servers before version 7 may replicate scripts, which then cannot ask for the time
    redis.replicate_commands()
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function recorded()
  redis.call('PEXPIRE', queue, 120000)
end

-- For a release: makes the holds of the first tickets the owners. Replies whether it did; if not, the key is to be removed.
-- Also replies whether others wait. Yields tells that some do in the process that releases, which does not give the hold to
-- them because they have had it for long enough.
local function pass(yields)
  local first = head()
  if not first and not yields then
    return false, false
  end
  local now, window = math.floor(clock() / 1000), nil
  if wide == 0 then
    open, wide = now, now
    redis.call('ZADD', queue, 'NX', -now, 'open', -now, 'wide')
    recorded()
  end
  if now < open then
    window = open - now
  elseif first and not first.value or now - open >= OFTEN and (announce() > 0 or sharded) then
    window = SHORT -- on a cluster nobody knows who is subscribed at other nodes
  end
  if now - wide >= RARELY then
    window = math.max(window or 0, WIDE)
    redis.call('ZADD', queue, -(now + window), 'wide')
  end
  if window then
    redis.call('ZADD', queue, -(now + window), 'open')
    recorded()
    tell(first, 'n', window)
    tell(tickets[2], 'n', window + STEP)
    return false, true
  end
  local _, served = serve()
  return served, served
end

-- For a call that waits: puts its ticket there, or looks after it, and serves the first tickets if the lock is free.
--   value, lease, kind  its hold
--   how                 queue, look, or due when it looks because its time has come
--   place, older        where its ticket was; and one that it replaces
--   left, holder        what the holder's lease has left, and who that is
-- Replies nothing when its hold owns the key now.
local function ask(value, lease, kind, how, place, older, left, holder)
  local member = value .. '|' .. lease .. kind
  local micros = clock()
  local now = math.floor(micros / 1000)
  if how == 'queue' then
    if older ~= '' then
      place = place ~= '' and place or redis.call('ZSCORE', queue, older) or ''
      redis.call('ZREM', queue, older)
    end
    if place == '' then
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
      place = string.format('%.0f', math.max(micros, (tonumber(last[2]) or 0) + 1))
    end
    redis.call('ZADD', queue, 'NX', -now, 'open', -now, 'wide', place, member)
  else
    place = redis.call('ZSCORE', queue, member)
    if not place then
      return {'missing'}
    end
  end
  recorded()
  fetch(redis.call('ZRANGE', queue, 0, 3, 'WITHSCORES'))
  if free(kind) and now < open then
    left = open - now
  elseif free(kind) then
    if how == 'due' then -- those in front had their time
      for _, other in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '(' .. place)) do
        redis.call('ZREM', queue, other)
        tell(parse(other), 'd', 0)
      end
      tickets, more = {}, true
    end
    local first, served = serve(member)
    if first and first.member == member and free(kind) then
      redis.call('ZREM', queue, member)
      own(value, lease, kind)
      table.remove(tickets, 1)
      tell(tickets[1], 'n', lease)
      return nil
    end
    left, holder = served and PROVISIONAL or left, nil
  end
  local rank = redis.call('ZCOUNT', queue, 0, '(' .. place)
  local foreign = 0
  if rank == 0 and holder then
    local registry = string.match(holder, '^(.*):%d+$')
    foreign = registry and subscribed(registry) and 0 or 1
  end
  return {'queued', left, rank, place, foreign}
end

-- For a call that leaves: removes its ticket, or with * those of its registry up to its number.
local function leave(value, ticket)
  local first = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
  if ticket == '*' then
    local registry, number = string.match(value, '^(.*):(%d+)$')
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '+inf')) do
      local other = parse(member)
      if other.registry == registry and tonumber(other.number) <= tonumber(number) then
        redis.call('ZREM', queue, member)
      end
    end
  else
    redis.call('ZREM', queue, ticket)
  end
  fetch(redis.call('ZRANGE', queue, 0, 3, 'WITHSCORES'))
  if tickets[1] and tickets[1].member ~= first then -- it is to watch the key now
    tell(tickets[1], 'n', math.max(redis.call('PTTL', key), 0))
  end
end
