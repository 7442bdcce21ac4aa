-- Returns the holders and waiters of some locks. It changes nothing: it has only reading commands.
--
-- KEYS     the locks' keys; then the keys beside them, unless they are refused: the queues, and the fencing counters of all
--          formats. The keys of readers' leases are not known before: the hash names them
-- ARGV[1]  the registry's prefix
-- ARGV[2]  how many holders and waiters to name for each key
-- ARGV[3]  S on a cluster
-- ARGV[4]  how many locks there are; missing: all keys are locks
-- ARGV[5]  moving: the slot of the locks moves, so other keys may be at another node, where they are not seen. Then no reader's
--          lease is taken to be over, and neither tickets nor counters are looked for. Missing: it does not
--
-- Replies for each key an array:
--   string, lock (a hash in Redisson's format), readwrite, semaphore, none, number, long string, or the name of another type
--   what the lease of the key has left, in milliseconds; -1: it has no end. Of a semaphore, how many permits there are
--   the fencing counter; empty: there is none
--   how many tickets there are, and the first ones, each with its place and how many connections listen to its registry's
--     channel; -1: not known
--   how many holders there are, and the first ones, each with its count, or how many permits it has, and what its lease has left
-- Texts that are longer than those of locks are cut, see bounded.
local prefix, most, sharded, moving = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'S', ARGV[5] == 'moving'
local LONGEST, HEAD = 4096, 100 -- a string that is longer is no lock

-- Cuts a name that is too long, so that no reply has a hundred megabytes. The Go side recognizes a cut name by its end.
local function bounded(name)
  if #name <= LONGEST then
    return name
  end
  return string.sub(name, 1, HEAD) .. ' (too long: ' .. #name .. ' bytes)'
end

local function hashed(name)
  return string.match(name, '^[^{]*{([^}]+)}') or name
end

local function tagged(key)
  return string.find(key, '{', 1, true) and key or '{' .. key .. '}'
end

-- The keys beside a key, see queue.lua.
local function beside(key, what)
  return hashed(key) ~= key and key .. what or prefix .. ':{' .. key .. '}' .. what
end

-- With odd braces in a name a cluster may keep the keys beside it in another slot. They are not used then.
local function here(name, key)
  return not sharded or hashed(name) == hashed(key)
end

local function typeOf(key)
  local kind = redis.call('TYPE', key)
  return kind.ok or kind
end

-- Returns how many connections listen to the channel of a registry, named as in queue.lua; nothing after an error.
local heard = {}
local function listeners(key, ticket)
  local registry = string.match(ticket, '^(.*):%d+|%d+[rwp]?%d*$')
  if not registry then
    return -1
  end
  local channel = prefix .. '-channel@'
  if sharded and hashed(key) ~= key and string.find(prefix, '^[^{]*{[^}]*$') then
    channel = key .. '-channel@'
  elseif sharded then
    channel = channel .. '{' .. hashed(key) .. '}'
  end
  channel = channel .. registry
  if not heard[channel] then
    local reply = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)
    heard[channel] = tonumber(reply[2]) or -1
  end
  return heard[channel]
end

local function tickets(key)
  local queue = beside(key, ':waiters')
  if moving or not here(queue, key) or typeOf(queue) ~= 'zset' then
    return 0, {}
  end
  local count = redis.call('ZCOUNT', queue, 0, '+inf')
  if count == 0 then
    return 0, {}
  end
  local found, first = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, most + 1), {}
  for i = 1, #found, 2 do
    if found[i] == 'guest' then
      count = count - 1
    elseif #first < 3 * most then
      first[#first + 1] = bounded(found[i])
      first[#first + 1] = found[i + 1]
      first[#first + 1] = #found[i] <= LONGEST and listeners(key, found[i]) or -1
    end
  end
  return count, first
end

-- Returns some fields of a hash with their values, and how many there are.
local function fieldsOf(key)
  local count = redis.call('HLEN', key)
  if count <= most + 28 then
    return redis.call('HGETALL', key), count
  end
  local cursor, fields = '0', {}
  repeat
    local reply = redis.call('HSCAN', key, cursor, 'COUNT', most)
    cursor = reply[1]
    for _, word in ipairs(reply[2]) do
      fields[#fields + 1] = word
    end
  until cursor == '0' or #fields >= 2 * most + 4
  return fields, count
end

local function holders(key, lease)
  local fields, count = fieldsOf(key)
  local mode = redis.call('HGET', key, 'mode')
  local name = tagged(key)
  local found, seen = {}, {mode = mode and true}
  if mode then
    count = count - 1
  end
  for i = 1, #fields, 2 do
    local field, held, left = fields[i], fields[i + 1], lease
    if not seen[field] and #found < 3 * most then
      seen[field] = true
      if mode and #field <= LONGEST and string.sub(field, -6) ~= ':write' and here(name .. ':', key) then
        left = -2 -- a reader's lease ends when the last of its keys is gone
        for n = 1, math.min(tonumber(held) or 0, most) do
          local own = name .. ':' .. field .. ':rwlock_timeout:' .. n
          own = moving and redis.pcall('PTTL', own) or redis.call('PTTL', own)
          if moving and (type(own) == 'table' or own == -2) then
            own = lease
          end
          left = own == -1 and own or left ~= -1 and math.max(left, own) or left
        end
      end
      if left == -2 then
        count = count - 1
      else
        found[#found + 1] = bounded(field)
        found[#found + 1] = bounded(held)
        found[#found + 1] = left
      end
    end
  end
  return mode and 'readwrite' or 'lock', count, found
end

-- Returns the holds of a semaphore whose lease is not over, see permits.lua. A user may lack permission for commands that other
-- locks do not need.
local function permits(key)
  local number, time = redis.pcall('ZSCORE', key, 'permits'), redis.pcall('TIME')
  number = tonumber(type(number) == 'string' and number or 0)
  if number >= 0 or time.err then
    return 'zset', -2, 0, {}
  end
  local at, found = time[1] * 1000 + math.floor(time[2] / 1000), {}
  local holds = redis.call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', at), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #holds, 2 do
    found[#found + 1] = bounded(holds[i])
    found[#found + 1] = tostring(1 - (redis.call('ZSCORE', key, holds[i] .. '*') or 0))
    found[#found + 1] = holds[i + 1] - at
  end
  return 'semaphore', -number, redis.call('ZCOUNT', key, '(' .. string.format('%.0f', at), '+inf'), found
end

local replies = {}
for i = 1, tonumber(ARGV[4] or #KEYS) do
  local key = KEYS[i]
  local kind, lease, count, found = typeOf(key), -2, 0, {}
  if kind == 'string' and redis.call('STRLEN', key) <= LONGEST then
    local value = redis.call('GET', key)
    lease, count = redis.call('PTTL', key), 1
    found = {string.match(value, '^(.*:%d+)%+$') or value, '1', lease} -- the mark says nothing that the queue does not
    if lease == -1 and string.find(value, '^%-?%d+$') then
      kind = 'number' -- Redisson's semaphores have one, of free permits
    end
  elseif kind == 'string' then
    kind = 'long string'
  elseif kind == 'hash' then
    lease = redis.call('PTTL', key)
    kind, count, found = holders(key, lease)
  elseif kind == 'zset' then
    kind, lease, count, found = permits(key)
  end
  local token = ''
  local counter = kind == 'lock' and 'redisson_lock_token:' .. tagged(key) or beside(key, ':fencing')
  if not moving and here(counter, key) and typeOf(counter) == 'string' then
    token = redis.call('STRLEN', counter) <= 20 and redis.call('GET', counter) or 'too long'
  end
  local waiters, first = tickets(key)
  replies[i] = {kind, lease, token, waiters, first, count, found}
end
return replies
