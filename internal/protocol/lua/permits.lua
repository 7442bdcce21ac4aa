-- The format of semaphores: a sorted set of the holds, by the end of each lease, in milliseconds of the server's clock. A hold
-- of several permits has a second member, "<value>*", whose score is minus the number of permits beyond one. The score of the
-- member permits is minus the number of all permits. A short lease that the grantee has yet to lengthen has the fraction .5.
-- The key lives longer than the longest lease, so that most holds need not lengthen its life, and much longer than a short one,
-- so that a grantee that does not lengthen its lease is noticed; it lives forever if the number was set, see set_permits.lua.
-- The lease in a ticket is followed by p and the number of permits that it asks for.

--# renew
local time = redis.call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = redis.call('ZSCORE', key, value)
if not ends or tonumber(ends) <= at then -- mutant: renewed when it is over
  return 0
elseif lease ~= '' then
  local left = redis.call('PTTL', key)
  if left >= 0 and left < tonumber(lease) then
    redis.call('PEXPIRE', key, lease + 15000) -- first: if it is forbidden, the lease has not changed
  end
  local at = string.format('%.0f', at + lease)
  if type(redis.pcall('ZADD', key, 'XX', at, value)) == 'table' then -- the server is out of memory
    redis.call('ZREM', key, '') -- a script that has written something may go on
    redis.call('ZADD', key, 'XX', at, value)
  end
end
if counter == '' then
  return 1
end
local prefix, sharded, slotted, queue = '', false, nil, false -- this script needs none, and leaves ended leases to others

--# obtain in turn
-- Grants one permit, if one is free, no call waits, no lease is over, and each hold has one permit: the members with the lowest
-- scores show that.
local named = string.match(under, '^1 (%d+)$')
if named and counter == '' then
  local time = redis.call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000)
  -- Of few permits one command shows how many are held.
  local first = redis.pcall('ZRANGE', key, '0', #named == 1 and named or '1', 'WITHSCORES') -- of another type: see wrong
  if first[1] == 'permits' and -first[2] == tonumber(named) and tonumber(first[4] or at + 1) > at and
    (#named == 1 and #first / 2 or redis.call('ZCARD', key)) <= -first[2] and -- mutant: one permit more
    (asks == '' or redis.pcall('EXISTS', queue) == 0) then -- mutant: in passing
    redis.call('ZADD', key, at + lease, value)
    local left = redis.call('PTTL', key)
    if left < 0 or left >= tonumber(lease) or type(redis.pcall('PEXPIRE', key, lease + 15000)) == 'number' then
      return nil
    end
    redis.call('ZREM', key, value) -- it is forbidden
  end
end

--# obtain queued
-- Adds a new ticket behind others, or looks at a ticket, if no permit is free, no lease is over, and each hold has one permit.
-- A hold whose ticket is there has none: what gives it permits takes the ticket out.
local asked, named = string.match(ARGV[10] or '', '^(%d+) (%d+)$')
if asked and (ARGV[7] or '') == '' and (asks == 'check' or asks == 'enqueue' and (ARGV[8] or '') == '') then
  local time = redis.call('TIME')
  local at = time[1] * 1000 + math.floor(time[2] / 1000)
  local first = redis.pcall('ZRANGE', key, '0', '1', 'WITHSCORES') -- of another type: see wrong
  if first[1] == 'permits' and first[4] and tonumber(first[4]) > at and tonumber(asked) <= -first[2] and
    redis.call('ZCARD', key) - 1 + asked > -first[2] and (asks == 'check' or not redis.call('ZSCORE', key, value)) then
    local ticket = value .. '|' .. (ARGV[9] or '') .. lease .. 'p' .. asked
    local last = asks == 'enqueue' and redis.pcall('ZREVRANGE', queue, '0', '0', 'WITHSCORES') or {}
    local score = tonumber(last[2] or -1)
    local place, micros = asks == 'check' and redis.pcall('ZSCORE', queue, ticket), time[1] * 1000000 + time[2]
    if score > 0 then
      place = string.format('%.0f', math.max(micros, score + 1))
      place = redis.pcall('ZADD', queue, place, ticket) == 1 and place
    end
    local seen = type(place) == 'string' and not string.find(place, '.', 1, true) -- else its look ends a question, see granted
    local rank = seen and redis.pcall('ZRANK', queue, ticket) -- it may be forbidden
    if type(rank) == 'number' then
      if math.floor(micros / 10000000) ~= math.floor(score / 10000000) then -- or it looks, or the server's clock went back
        redis.pcall('PEXPIRE', queue, '120000')
      end
      local other = tonumber(named) ~= -first[2]
      return {'queued', first[4] - at, rank - 2, place, 0, other and -first[2] or nil} -- two are no tickets, see queue.lua
    end
  end
end

--# release queued
if plain then
  local waiting = prefix ~= '' and redis.pcall('ZRANGEBYSCORE', queue, '0', '+inf', 'WITHSCORES', 'LIMIT', '0', '1') or {}
  if not waiting[1] and not waiting.err and redis.call('ZREM', key, value, value .. '*') > 0 then
    if channels ~= '' then -- publishing may be forbidden; the permits are released all the same
      redis.pcall('PUBLISH', channels .. key, key)
    end
    return 1
  end
  -- Most removals find nothing: they wait for a command that may come late, again and again, for each call that got no reply.
  local held = redis.pcall('ZSCORE', key, value)
  if held == false and value ~= '*' then
    return 0
  end
  -- Gives the permit to the first ticket, if that asks for one permit for ten seconds or longer, all permits are held, no lease
  -- is over, each hold has one permit, and no other call must be told, see warnAnother. See queue.lua for the steps.
  local registry, number = string.match(waiting[1] or '', '^(.*):(%d+)|[1-9]%d%d%d%d+p1$')
  local own = registry and (slotted or prefix .. '-channel@') .. registry
  local heard = own and redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', own)[2]
  if heard and heard > 0 then
    local time, first = redis.call('TIME'), redis.call('ZRANGE', key, '0', '1', 'WITHSCORES')
    local at = time[1] * 1000 + math.floor(time[2] / 1000)
    local young = time[1] * 1000000 + time[2] - waiting[2] < 1000000
    local searched = young or at + (tonumber(redis.pcall('ZSCORE', queue, 'open')) or 0)
    if first[1] == 'permits' and first[4] and tonumber(first[4]) > at and redis.call('ZCARD', key) == 1 - first[2] and
      (young or searched >= 0 and searched < 1000) and held and redis.pcall('ZREM', queue, waiting[1]) == 1 then
      local publisher, given = sharded and 'SPUBLISH' or 'PUBLISH', registry .. ':' .. number
      redis.call('ZREM', key, value) -- mutant: permit given twice
      redis.call('ZADD', key, string.format('%.1f', at + 1000.5), given) -- mutant: permit lost on the way
      local left = redis.call('PTTL', key)
      local lives = left < 0 or left >= 15000 or type(redis.pcall('PEXPIRE', key, '30000')) == 'number'
      if lives and type(redis.pcall(publisher, own, 'g ' .. number .. ' 1000 ' .. key)) == 'number' then
        return 2
      end
      redis.call('ZREM', key, given) -- one of the two was forbidden
      redis.call('ZADD', key, string.format('%.0f', at + 1000), value)
    end
  end
elseif prefix ~= '' and ARGV[6] == '' and (ARGV[7] or '') ~= '' and not ARGV[11] and
  redis.pcall('ZSCORE', key, value) == false and redis.pcall('ZSCORE', queue, ARGV[7]) == false then -- neither the hold nor its ticket
  return 0
end

--# format
local time = redis.call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
local side = ''
local limit, stored = 0, false -- the number of permits, 0: not known; and whether it is in the key
local used = 0

-- Takes out the tickets of processes that stand still: each was granted permits, and has not lengthened the lease. So such a
-- process delays the tickets behind its own by a second, or a second for each two thousand of its calls. A process that was
-- only late gets its places back.
local function passOver(still)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 2000)) do
    local registry, number = string.match(member, '^(.*):(%d+)|')
    if still[registry or ''] then
      redis.call('ZREM', queue, member)
      local own = (slotted or prefix .. '-channel@') .. registry
      redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', own, 'd ' .. number .. ' 0 ' .. key)
    end
  end
end

-- Removes holds whose lease is over, and counts the permits that are held. Returns false if the key is no semaphore.
local function count()
  local special = redis.pcall('ZRANGEBYSCORE', key, '-inf', '(0', 'WITHSCORES')
  if special.err and string.find(special.err, '^WRONGTYPE') then
    return false
  elseif special.err then
    return redis.call('ZRANGEBYSCORE', key, '-inf', '(0', 'WITHSCORES') -- raises it
  end
  for i = 1, #special, 2 do
    if special[i] == 'permits' then
      limit, stored = -special[i + 1], true
    end
  end
  if not stored then
    return redis.call('EXISTS', key) == 0
  end
  local over, still = queue ~= false and redis.call('ZRANGEBYSCORE', key, 0, at, 'WITHSCORES') or {}, nil
  for i = 1, #over, 2 do
    redis.call('ZREM', key, over[i], over[i] .. '*') -- mutant: weight left
    local registry = over[i + 1] % 1 > 0 and string.match(over[i], '^(.*):')
    if registry and string.find(value, registry .. ':', 1, true) ~= 1 then
      still = still or {}
      still[registry] = true
    end
  end
  if still and prefix ~= '' then
    pcall(passOver, still) -- mutant: stands still for each call
  end
  if over[1] then
    special = redis.call('ZRANGEBYSCORE', key, '-inf', '(0', 'WITHSCORES')
  end
  used = redis.call('ZCARD', key) - #special / 2
  for i = 1, #special, 2 do
    if special[i] ~= 'permits' then
      used = used - special[i + 1]
    end
  end
  return true
end

-- Returns the error for a key that is no semaphore. Redisson's semaphores have the number of free permits at the key.
local function wrong()
  local there = redis.pcall('GET', key)
  if type(there) == 'string' and string.find(there, '^%-?%d+$') then
    return 'WRONGTYPE the key holds a number'
  end
  return 'WRONGTYPE the key holds something else than a semaphore'
end

-- Returns whether enough permits are free for a kind of ticket; r: for one permit. There are no windows, since no other library
-- uses this format: so the lock is never free for w.
local function free(kind)
  local wanted = kind == 'r' and 1 or tonumber(string.match(kind, 'p(%d+)$'))
  return wanted and used + wanted <= limit or false -- mutant: several count as one
end

-- Gives a hold the permits of its kind of ticket. If asked is longer than the lease, the lease is a short one, which the
-- grantee lengthens; not by less than some milliseconds. If the user may not lengthen the key's life, it returns the error, and
-- nothing has changed: a new key would stay for ever.
local function take(value, lease, kind, asked)
  local permits, mark, least = tonumber(string.sub(kind, 2)), 0, tonumber(lease)
  if type(asked) == 'string' and tonumber(asked) > least + 10 then -- mutant: short lease is to be lengthened
    mark, least = 0.5, 15000 -- mutant: key ends with the grant
  end
  if not stored then
    redis.call('ZADD', key, -limit, 'permits')
  end
  local added = redis.call('ZADD', key, string.format('%.1f', at + lease + mark), value)
  if permits > 1 then
    redis.call('ZADD', key, 1 - permits, value .. '*')
  end
  local left = redis.call('PTTL', key)
  local done = (not stored or left >= 0 and left < least) and redis.pcall('PEXPIRE', key, least + 15000)
  if type(done) == 'table' then
    redis.call('ZREM', key, value, value .. '*', stored and value or 'permits')
    return done
  end
  used, stored = used + added * permits, true
end

--# form
local TICKET = '^(.*):(%d+)|(%d+)([rwp]?%d*)$' -- as in queue.lua; tickets of locks are there if a path is used as both

--# heads
-- Tells the first ticket of a process other than still, which may stand still, that it may look after some time: among the
-- first hundred tickets, or some further back. The ticket mine looks anyway. If there is no such ticket, the score of open is
-- minus the time of the search, as there are no windows, and for a second nobody searches: newer tickets look soon by
-- themselves.
local function warnAnother(still, mine, ms)
  local searched = at + (tonumber(redis.call('ZSCORE', queue, 'open')) or 0)
  if searched >= 0 and searched < 1000 then -- mutant: searches no more
    return
  end
  local passed, processes, rank = {[still] = true}, 0, 2 -- two members are no tickets
  while rank < 4000 and processes < 10 do
    local some = redis.call('ZRANGE', queue, rank, rank < 100 and 101 or rank)
    for _, member in ipairs(some[1] and some or redis.call('ZRANGE', queue, '-1', '-1')) do
      local registry, number = string.match(member, '^(.*):(%d+)|')
      if registry and not passed[registry] and processes < 10 then
        if member == mine or redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', (slotted or prefix .. '-channel@') .. registry,
          'n ' .. number .. ' ' .. ms .. ' ' .. key) ~= 0 then
          return
        end
        passed[registry], processes = true, processes + 1 -- it is gone
      end
    end
    rank = not some[1] and 4000 or rank < 100 and 102 or rank * 2
  end
  redis.pcall('ZADD', queue, 'XX', -at, 'open')
end

-- Returns the first ticket, see queue.lua, also for those of an unknown form. Each waiting call of a process has a ticket: the
-- tickets of a process that is gone are removed together, some thousands at a time; the next one is then taken as if its
-- process were there. A ticket that asks for more permits than there are, or for a lock, would block the tickets behind it: its
-- call looks, and fails.
local function heads(entries, mine, before)
  local heard, rounds = {}, 20 -- by registry, whether its process is there
  local last = '|'             -- the beginning of the last ticket whose process is not
  while true do
    local gone, found = {}, false
    local first, registry, number, lease, kind, place, asked
    for i = 1, #entries, 2 do
      first, place = entries[i], entries[i + 1]
      if string.find(first, last, 1, true) == 1 and first ~= mine and rounds > 0 then
        gone[#gone + 1] = first
      elseif first ~= 'open' and first ~= 'wide' then
        registry, number, lease, kind = string.match(first, '^(.*):(%d+)|(%d+)([rwp]?%d*)$')
        found = first == mine or rounds == 0 or not registry and tonumber(place) >= (before or 0) -- mutant: unknown for ever
        if registry and not found then
          local own = (slotted or prefix .. '-channel@') .. registry
          asked = tonumber(string.match(kind, '^p(%d+)$'))
          if heard[registry] == nil then
            heard[registry] = redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', own)[2] > 0
          end
          if not heard[registry] then
            last = registry .. ':'
          elseif asked and (limit == 0 or asked <= limit) then -- mutant: asks for too many
            found = true
          else
            redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', own, 'd ' .. number .. ' 0 ' .. key)
          end
        end
        if found then
          break
        end
        gone[#gone + 1] = first
      end
    end
    if gone[1] then
      redis.call('ZREM', queue, unpack(gone))
    end
    if found then
      return first, registry, number, lease, kind, place
    elseif not gone[1] then
      return nil
    end
    rounds = rounds - 1
    entries = redis.call('ZRANGE', queue, '0', '101', 'WITHSCORES')
  end
end

--# granted
local grants = grantNext

-- See queue.lua. Free permits that are too few for the first ticket are reserved for it under a short lease, that of a grant:
-- its process must show that it runs. A call behind it, of another process, that finds permits kept from it has it look: the
-- fraction .5 of its place says so, and minus the score of wide is when the lease is over, as there are no windows. Its look
-- takes the fraction away, see obtain_queued.lua. If it has not looked by then its process stands still, and is passed over.
--
-- No permit is given twice or lost: none is given or taken here. Only tickets are taken out, of calls that are told to look, and
-- that get their places back. No large request starves while its process runs: nobody is served past it unless the fraction is
-- in this very ticket, so that its call was told, and has not looked for all of the lease. A look that is late, because the
-- server or a machine stands still for as long, costs it one turn. Each ticket is asked for itself, whoever was the first
-- before, and only when the lease of the last question is over: the questions cost a look in a second.
grantNext = function(micros, mine, first, registry, number, lease, kind, place)
  local left, over
  while mine and first and first ~= mine and registry and not free(kind) and string.find(value, registry .. ':', 1, true) ~= 1 do
    local asked, short = place % 1 > 0, 1000 * 2 ^ math.min(3, #string.match(lease, '^0*'))
    left = -(tonumber(redis.call('ZSCORE', queue, 'wide')) or 0) - at
    if asked and left <= 0 and not over then -- mutant: first for ever
      passOver({[registry] = true})
      first, registry, number, lease, kind, place = heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES'), mine)
      left, over = nil, true -- the next one is asked at once
    else
      if left <= 0 or left > 8000 then -- or the server's clock went back
        left, asked = short, true
        redis.pcall('ZADD', queue, string.format('%.1f', math.floor(place) + 0.5), first, -at - short, 'wide')
        tell(registry, number, 'd', 0)
      end
      left = asked and left or nil
      break
    end
  end
  local next, granted = grants(micros, mine, first, registry, number, lease, kind, place)
  return next, granted or left
end

--# holder
local wanted, number = string.match(under, '^(%d+) (%d+)$')
side = 'p' .. (wanted or '1')

-- Returns the state of the semaphore for a hold: it has its permits, or may have them. Permits of other holds of its registry
-- do not count as its own.
local function holder(value)
  if not count() then
    return 'wrong', wrong()
  end
  if not stored then
    limit = tonumber(number or 0)
  end
  local ends = redis.call('ZSCORE', key, value)
  if ends then
    return 'mine', false, ends - at
  elseif tonumber(wanted or 1) > limit then
    return 'wrong', 'ERR a semaphore of ' .. limit .. ' permits never has as many as ' .. wanted
  elseif free(side) and (asks == '' or asks == 'try' or not stored) then
    return 'free', false, -2
  end
  local first = redis.call('ZRANGEBYSCORE', key, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return free(side) and 'free' or 'taken', false, first[1] and first[2] - at or -1
end

--# in passing
-- A call without a ticket does not overtake waiting calls in the queue, unless their processes are gone.
if asks == 'try' and state == 'free' then
  local ok, first = pcall(heads, redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES'))
  if ok and first then
    state, left = 'taken', left or -1
  end
end

--# decision
-- If the number of permits differs from the one that the call has named, the reply has it.
local other = stored and tonumber(number) ~= limit and limit
if state == 'taken' then
  return other and {'taken', left, other} or left
end
local refused = fence() or take(value, lease, side)
if refused then
  return refused
end
return (other or token) and {'granted', token or 0, other or nil} or nil

--# extend
-- Only draws a token; the rest of a renewal is in the fast section.
local function extend()
  return true
end

--# end
-- Ends a hold; with *, which is no hold's value, all holds.
local function drop(value)
  local had = value ~= '*' and redis.call('ZREM', key, value, value .. '*') > 0
  local all = count() and value == '*' and redis.call('ZRANGE', key, '0', '-1') or {}
  for _, member in ipairs(all) do
    had = member ~= 'permits' and redis.call('ZREM', key, member) == 1 or had
  end
  if all[1] then
    count()
  end
  return had and 'mine' or 'ours', had
end

local function announce()
  return tonumber(channels ~= '' and redis.pcall('PUBLISH', channels .. key, key)) or 0
end
