-- The queue of those who wait for a lock: a part of the scripts that obtain and release it. specs/PROTOCOL.md says what it has
-- to do, and why in this order.
--
-- A ticket is a member of the sorted set queue, "<value>|<lease ms>", of a read-write lock with an r or a w behind it. Its
-- score is its place. Two members with negative scores sort before all tickets: open, minus the end of the newest window in
-- which the key is left to those without a ticket, and wide, minus that of the newest long one, in milliseconds.
--
-- The script has defined
--   key, prefix, sharded, queue, tag   see names.lua
--   free(kind)                         whether the lock is free for a ticket of that kind
--   own(value, lease, kind)            makes a hold its owner
local PROVISIONAL = 1000 -- the lease of a grant, until the grantee lengthens it

local function channel(registry)
  if sharded then
    return prefix .. '-channel@{' .. (tag or key) .. '}' .. registry
  end
  return prefix .. '-channel@' .. registry
end

-- Tells the process of a ticket "<what> <number> <ms> <key>": g for a grant with a lease of so long; n that the ticket is the
-- next one, and may look when so long is over; d that it was taken out.
local function tell(member, what, ms)
  local registry, number = string.match(member or '', '^(.*):(%d+)|%d+[rw]?$')
  if registry then
    redis.call(sharded and 'SPUBLISH' or 'PUBLISH', channel(registry), what .. ' ' .. number .. ' ' .. ms .. ' ' .. key)
  end
end

local function subscribed(registry)
  return redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel(registry))[2] > 0
end

-- The first two tickets. Those in front of which no process is there any more are removed, but not the ticket mine. One of a
-- form that this script does not know belongs to a newer version.
local function heads(entries, mine)
  while true do
    local first, second = nil, nil
    for i = 1, #entries, 2 do
      local member = entries[i]
      if member ~= 'open' and member ~= 'wide' then
        if first then
          second = member
          break
        end
        first = member
      end
    end
    if not first and #entries < 8 or first == mine then
      return first, second
    end
    if first then
      local registry = string.match(first, '^(.*):%d+|%d+[rw]?$')
      if not registry or subscribed(registry) then
        return first, second
      end
      redis.call('ZREM', queue, first)
    end
    entries = redis.call('ZRANGE', queue, 0, 3, 'WITHSCORES')
  end
end

-- Serves tickets from the first one on, for as long as the lock is free for them, up to the ticket mine. It returns the first
-- one that it leaves there, and whether it served any. A ticket is removed before its hold owns the key: where the server is
-- out of memory, the latter alone would be refused. The messages come last.
local function serve(first, second, mine)
  local last, granted = nil, nil
  while first and first ~= mine do
    local value, lease, kind = string.match(first, '^(.*)|(%d+)([rw]?)$')
    if not value or not free(kind) then
      break
    end
    lease = math.min(tonumber(lease), PROVISIONAL)
    redis.call('ZREM', queue, first)
    own(value, lease, kind)
    if last then
      tell(last, 'g', granted)
    end
    last, granted = first, lease
    if free(kind) then -- other readers
      first, second = heads(redis.call('ZRANGE', queue, 0, 3, 'WITHSCORES'), mine)
    else -- no other one can be served: it need not be there to be told
      first, second = second, nil
    end
  end
  if last then
    if first ~= mine then
      tell(first, 'n', granted)
    end
    tell(last, 'g', granted)
  end
  return first, last ~= nil
end
