-- The format of Redisson's RPermitExpirableSemaphore: the key has how many permits are free, and a sorted set the held ones, by
-- the end of each lease, in whole milliseconds, since Java reads them as such. Redisson's have an id of 16 bytes, and go by the
-- clock of the process that acquired them; those without a lease have an end that never comes. Go's go by the server's clock.
-- Redisson takes out what is over by the clock of any process. So the end of a Go hold is a third of its lease later than the
-- hold relies on, also when a renewal is shorter than the lease because it ends at a bound. And what is over of Redisson's is
-- left alone for a third of the lease of the call that finds it. So nobody is put out while no clock differs by more than a third
-- of the shortest lease in use.
--
-- A hold is its value, and of several permits "<value>*2", "<value>*3" and so on besides. Its end is an even number until the
-- grantee has lengthened the lease, and odd from then on. The number of permits is what is free and what is held. It stays until
-- somebody removes the key. What both formats of semaphores share is in permits.lua.

--# held
local holds = string.find(key, '{', 1, true) and key .. ':timeout' or '{' .. key .. '}:timeout'

local function part(value, n)
  return n == 1 and value or value .. '*' .. n
end

-- Returns the score of a lease that begins at some time. Relied: the lease of which a third is added; short: the grantee is to
-- lengthen it.
local function ending(at, lease, relied, short)
  local half = math.ceil((at + lease + math.ceil(relied / 3)) / 2) -- mutant: no margin, Redisson
  return string.format('%.0f', 2 * half + (short and 0 or 1)) -- mutant: half a millisecond, Redisson
end

--# renew
-- ARGV[4]  how many permits the hold has
-- ARGV[5]  the hold's own lease, if this one is shorter, to end at a bound; empty or missing: it is not
local time = redis.call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
local parts = {}
for n = 1, tonumber(ARGV[4] or '') or 1 do
  parts[n] = part(value, n) -- if Java has released one, the hold is lost
  local ends = redis.call('ZSCORE', holds, parts[n])
  if not ends or tonumber(ends) <= at then -- mutant: renewed when it is over, Redisson
    return 0
  end
end
if lease ~= '' then
  local later = ending(at, lease, tonumber(ARGV[5] or '') or lease) -- mutant: margin of the bound
  for _, member in ipairs(parts) do
    if type(redis.pcall('ZADD', holds, 'XX', later, member)) == 'table' then -- see permits.lua
      redis.call('ZREM', holds, '')
      redis.call('ZADD', holds, 'XX', later, member)
    end
  end
end
if counter == '' then
  return 1
end
local prefix, sharded, slotted, queue = '', false, nil, nil -- as in permits.lua

--# obtain in turn
-- As in permits.lua. That the hold is new is asked since one that is not takes nothing from what is free.
local named = string.match(under, '^1 (%d+)')
if named and counter == '' then
  local time = redis.call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000)
  local there = tonumber(redis.call('GET', key) or '') or 0
  local first = there > 0 and redis.call('ZRANGE', holds, '0', '0', 'WITHSCORES')
  if first and tonumber(first[2] or at + 1) > at and there + redis.call('ZCARD', holds) == tonumber(named) and
    not redis.call('ZSCORE', holds, value) and (asks == '' or redis.pcall('EXISTS', queue) == 0) then
    redis.call('INCRBY', key, -1)
    redis.call('ZADD', holds, ending(at, lease, lease), value)
    local lives = redis.call('PTTL', key)
    if lives > 0 then
      redis.call('PEXPIRE', holds, lives)
    end
    return nil
  end
end

--# obtain queued
--# release queued
local waiting = plain and prefix ~= '' and redis.pcall('ZRANGEBYSCORE', queue, '0', '+inf', 'LIMIT', '0', '1') or {}
if plain and not waiting[1] and not waiting.err then
  if not redis.call('ZSCORE', holds, value .. '*2') and redis.call('EXISTS', key) == 1 and
    redis.call('ZREM', holds, value) == 1 then -- mutant: permit given twice, Redisson
    local there = redis.call('INCRBY', key, 1)
    -- To publish may be forbidden; the permit is released all the same. In a cluster Redisson listens to the sharded channel.
    if channels ~= '' and there > 0 then -- mutant: none published, the short way
      local channel = channels .. (braced and key or '{' .. key .. '}')
      redis.pcall('PUBLISH', channel, there)
      if sharded then -- mutant: sharded sleepers, the short way
        redis.pcall('SPUBLISH', channel, there)
      end
    end
    return 1
  end
end

--# format
local leaving = false -- a ticket leaves the queue, which may have kept others out
local margin = nil    -- for how long what is over of Redisson's is left alone; nil: for ever, in a script that knows no lease
local each = 1        -- how many permits a hold asks for
local tells = false   -- what is over and taken out is published
local among = 10      -- as in permits.lua: of those in front some may be Redisson's, and left alone for longer

local function foreign(member)
  return #member == 16 or not string.find(member, ':%d+%*?%d*$')
end

-- Returns the end of a hold, if all its permits are there.
local function endOf(value)
  local ends = redis.call('ZSCORE', holds, value)
  for n = 2, each do
    ends = ends and redis.call('ZSCORE', holds, part(value, n)) -- mutant: a part is enough
  end
  return ends
end

-- Returns what a lease has left, to a hold, or to those who wait; -1: it has no end.
local function leftOf(member, ends)
  if tonumber(ends) >= 900000000000000 then
    return -1
  elseif member == value then
    return math.max(ends - at - margin - 2, 1)
  end
  return math.max(ends - at + (foreign(member) and margin or 0), 0)
end

-- Tells Redisson's waiters how many permits are free: so many of them wake. Less than one is an error to them.
local function publish(begins)
  if used >= limit then -- mutant: none published
    return 0
  end
  local channel = begins .. (string.find(key, '{', 1, true) and key or '{' .. key .. '}')
  local received = redis.pcall('PUBLISH', channel, limit - used)
  if sharded then -- mutant: sharded sleepers
    redis.pcall('SPUBLISH', channel, limit - used)
  end
  return tonumber(received) or 0
end

-- Takes out what is over, a thousand at a time, since a command takes no more than some thousands. Returns how many permits that
-- are, or nil when the set is another thing. Java takes them out, too, and then nobody learns that a process stands still: so it
-- may be granted permits again, for each of its tickets.
local function takeOut()
  local gone, kept, still, more = 0, 0, nil, true
  while more do
    local found, over = redis.pcall('ZRANGEBYSCORE', holds, 0, at, 'WITHSCORES', 'LIMIT', kept, 1000), {}
    if found.err then
      return nil
    end
    for i = 1, #found, 2 do
      local member, ends = found[i], tonumber(found[i + 1])
      if foreign(member) and not (margin and ends <= at - margin) then -- mutant: Java's clock
        kept = kept + 1
      else
        over[#over + 1] = member
        local registry = ends % 2 == 0 and not foreign(member) and string.match(member, '^(.*):')
        if registry and string.find(value, registry .. ':', 1, true) ~= 1 then
          still = still or {}
          still[registry] = true
        end
      end
    end
    if over[1] then
      gone = gone + redis.call('ZREM', holds, unpack(over))
    end
    more = #found == 2000
  end
  if still and prefix ~= '' then
    pcall(passOver, still)
  end
  return gone
end

-- Counts the permits that are held, after it has removed those whose lease is over. More: how many were given back in this
-- script. Returns false when the key is another thing's, else how many were over.
local function count(more)
  local there = redis.pcall('GET', key)
  if type(there) == 'table' or there and not string.find(there, '^%-?%d+$') then
    return false
  end
  local gone = queue and takeOut() or not queue and 0
  if not gone then
    return false
  end
  stored, used = there ~= false, redis.call('ZCARD', holds)
  if stored and gone + (more or 0) > 0 then
    there = redis.call('INCRBY', key, gone + (more or 0)) -- mutant: what is over is lost
  end
  limit = stored and used + there or 0
  if gone > 0 and tells then
    publish('redisson_sc:')
  end
  return gone
end

-- Returns whether enough permits are free for a kind of ticket; r and w: for one permit. While a ticket leaves there are no
-- windows: those whom it has kept out are served.
local function free(kind)
  if leaving and kind == 'w' then
    return false
  end
  local wanted = tonumber(string.match(kind or '', 'p(%d+)$') or 1)
  return used + wanted <= limit
end

-- See permits.lua. Where what is free is not known, it is what those leave who have permits. Some of the hold's permits may be
-- there: Redisson takes out as many as it wants of those that are over.
local function take(value, lease, kind, asked)
  local permits, relied, short = tonumber(string.sub(kind, 2)), tonumber(lease), false
  if type(asked) == 'string' then
    relied, short = tonumber(asked), tonumber(asked) > tonumber(lease) + 10
  end
  local ends, added = ending(at, lease, relied, short), 0
  if not stored then
    redis.call('SET', key, limit - used)
    stored = true
  end
  -- First the counter: a server that is out of memory refuses only the first write.
  redis.call('INCRBY', key, -permits) -- mutant: nothing taken
  for n = 1, permits do
    added = added + redis.call('ZADD', holds, ends, part(value, n))
  end
  if added < permits then -- mutant: taken twice
    redis.call('INCRBY', key, permits - added)
  end
  used = used + added
  local lives = redis.call('PTTL', key) -- somebody has set it
  if lives > 0 then
    redis.call('PEXPIRE', holds, lives)
  end
end

--# lease
margin, tells = math.ceil((tonumber(lease) or 0) / 3), string.find(under, ' p$')
each = tonumber(string.match(under, '^%d+') or 1)

--# granted
local grants = grantNext

-- See queue.lua. A ticket that may have become the first one is told, of whichever process it is: its call must watch the
-- counter now, since Java's releases serve nobody. One that is younger than a second looks soon.
grantNext = function(micros, mine, ...)
  local next, granted = grants(micros, mine, ...)
  if granted or not mine then
    local first = redis.call('ZRANGE', queue, '2', '2', 'WITHSCORES') -- two members are no tickets
    if first[1] and first[1] ~= mine and micros - first[2] >= 1000000 then
      warn(first[1], 'n', granted or 1000) -- mutant: nobody watches
    end
  end
  return next, granted
end

--# end
leaving = string.find(ARGV[7] or '', 'p%d+$') ~= nil

-- Ends a hold; for *, which is no hold's value, all of them, Redisson's too. Of a hold that is not there some may be.
local function drop(value)
  local had, gone = false, 0
  if value == '*' then
    repeat
      local some = redis.call('ZRANGE', holds, '0', '999')
      gone = gone + (some[1] and redis.call('ZREM', holds, unpack(some)) or 0)
    until not some[1]
    had = gone > 0
  else
    had = redis.call('ZREM', holds, value) == 1
    gone = had and 1 or 0
    local n, some, removed = 2, had and 1 or 50, nil
    repeat
      local more = {}
      for i = 1, some do
        more[i] = value .. '*' .. n + i - 1
      end
      removed = redis.call('ZREM', holds, unpack(more))
      gone, n, some = gone + removed, n + some, 50
    until removed == 0
  end
  local over = count(gone) -- mutant: permit lost, Redisson
  return had and 'mine' or 'ours', over and gone + over > 0
end

local function announce()
  return channels ~= '' and publish(channels) or 0
end

--# number
local function setNumber(n)
  if stored then
    redis.call('INCRBY', key, n - limit)
  else
    redis.call('SET', key, n - used)
  end
  limit, stored = n, true
end
