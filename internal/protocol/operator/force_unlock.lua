-- Removes a lock, whichever hold has it, or one holder's part of it, and publishes that in the lock's format.
--
-- KEYS     the lock's key; the queue, if there is one. The keys of readers' leases are not known before: the hash names them
-- ARGV[1]  the holder to remove, as named in the key: its value, with or without the mark, or a field; empty: all holders
-- ARGV[2]  the name as it appears in derived keys: in braces, unless it contains some
-- ARGV[3]  PUBLISH, SPUBLISH to publish in Redisson's format in both ways, or empty
-- ARGV[4]  the channel of all plain locks in Spring's format; empty or missing: plain locks are in Redisson's
-- ARGV[5]  the beginning of the values of the registry's own holds
-- ARGV[6]  the registry's prefix
-- ARGV[7]  S on a cluster
--
-- Replies the removed holders that belong to the registry, as they were named in the key, but without the mark. If none does,
-- the beginning of one of the others, which may be of any length. The reply is empty if the lock was free, or not that
-- holder's.

--# head
local key, holder, name = KEYS[1], ARGV[1], ARGV[2]
local how, common, registry = ARGV[3] or '', ARGV[4] or '', ARGV[5] or ''
local prefix, sharded = ARGV[6] or '', ARGV[7] == 'S'

--# operation
local LONGEST, HEAD = 4096, 100 -- as in inspect.lua

-- The user may lack permission for one of the commands, but not for both, and old servers have only one.
local function remove(k)
  local removed = redis.pcall('UNLINK', k)
  if type(removed) == 'table' then
    redis.call('DEL', k)
  end
end

local function publish(command, channel, message) -- may be forbidden; the lock is removed all the same
  local received = redis.pcall(command, channel, message)
  return type(received) == 'number' and received > 0
end

-- Has the process of the first ticket look, which passes the lock on: while the ticket is young, nothing else may tell it.
local function wake()
  local first, waits, number = heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES'))
  if first and waits then -- else it is a writer without a ticket, or of a newer version
    tell(waits, number, 'n', 0)
  end
end

local function told(gone)
  if #KEYS > 1 then -- otherwise the queue is forbidden, or at another node
    pcall(wake)
  end
  local own = {}
  for _, name in ipairs(gone) do
    if #name <= LONGEST and string.sub(name, 1, #registry) == registry then
      own[#own + 1] = name
    end
  end
  return own[1] and own or {gone[1] and string.sub(gone[1], 1, HEAD)}
end

local kind = redis.call('TYPE', key)
kind = kind.ok or kind
if kind == 'none' then
  return {}
end
if kind == 'string' and common ~= '' then
  local function unmarked(value) return string.match(value, '^(.*:%d+)%+$') or value end
  local value = unmarked(redis.call('GET', key))
  if string.find(value, '^%-?%d+$') and redis.call('PTTL', key) == -1 then -- mutant: number removed
    return redis.error_reply('WRONGTYPE the key holds a number')
  end
  if holder ~= '' and unmarked(holder) ~= value then
    return {}
  end
  remove(key)
  if how ~= '' then
    publish('PUBLISH', common .. ':' .. key, key)
    publish('PUBLISH', common, key) -- for old Java peers
  end
  return told({value})
end

local mode, holders, counts = nil, {}, {}
if kind == 'hash' then
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if fields[i] == 'mode' then
      mode = fields[i + 1]
    else
      holders[#holders + 1] = fields[i]
      counts[fields[i]] = tonumber(fields[i + 1]) or 0
    end
  end
end
if kind ~= 'hash' or not mode and common ~= '' then
  return redis.error_reply('WRONGTYPE the key holds something else than a lock of this registry')
end
if holder ~= '' and not counts[holder] then
  return {}
end

-- In Redisson's format, also to its waiters in a cluster. See readwrite.lua for the second message.
local function announce(channel, all)
  for _, command in ipairs(how == 'SPUBLISH' and {'PUBLISH', 'SPUBLISH'} or {how}) do
    if command ~= '' and publish(command, channel, all and '1' or '0') and all then
      publish(command, channel, '0')
    end
  end
end

if not mode then
  remove(key)
  announce('redisson_lock__channel:' .. name, false)
  return told(holders)
end

local function lease(field, n)
  return name .. ':' .. field .. ':rwlock_timeout:' .. n
end
local gone = holders
if holder ~= '' then
  gone = {holder}
end
for _, field in ipairs(gone) do
  for n = 1, counts[field] do
    remove(lease(field, n))
  end
end
if holder ~= '' then
  redis.call('HDEL', key, holder)
  -- The lock lives on as long as the longest lease of the readers, or as the hash does if there is a writer, or if a lease is at
  -- another node while the slot moves, see rest in readwrite.lua, or the user may not change leases.
  local longest, known = 0, true
  for _, field in ipairs(holders) do
    if field ~= holder then
      if string.sub(field, -6) == ':write' then
        return told(gone)
      end
      for n = 1, counts[field] do
        local left = redis.pcall('PTTL', lease(field, n))
        if type(left) == 'number' and (left ~= -2 or type(redis.pcall('EXISTS', key, lease(field, n))) == 'number') then
          longest = math.max(longest, left)
        else
          known = false
        end
      end
    end
  end
  if longest > 0 or not known then
    if known then
      redis.pcall('PEXPIRE', key, longest)
    end
    if mode == 'write' then -- others may read now
      redis.call('HSET', key, 'mode', 'read')
      announce('redisson_rwlock:' .. name, true)
    end
    return told(gone)
  end
end
remove(key)
announce('redisson_rwlock:' .. name, true)
return told(gone)
