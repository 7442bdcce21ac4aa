-- Ends a hold that reads under a read-write lock in Redisson's format.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  the name as it stands in derived keys
--
-- Replies 0 when the hold was not there, or its lease was over: other readers keep the lock then, but not for this one.
-- Else the reply is 1 and the number of clients that received a message, which is sent when nobody holds the lock any
-- more. In any case the hold is gone now.
local key, field, name = KEYS[1], ARGV[1], ARGV[4]
local was = redis.call('DEL', name .. ':' .. field .. ':rwlock_timeout:1')
if redis.call('HDEL', key, field) == 0 then
  return 0
end
-- The lock now lives as long as the longest lease of those who stay. One who writes has the lease of the hash itself.
local longest = 0
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  local other, count = fields[i], tonumber(fields[i + 1])
  if other ~= 'mode' then
    if string.sub(other, -6) == ':write' then
      return was
    end
    for n = 1, count or 0 do
      longest = math.max(longest, redis.call('PTTL', name .. ':' .. other .. ':rwlock_timeout:' .. n))
    end
  end
end
if longest > 0 then
  redis.call('PEXPIRE', key, longest)
  return was
end
redis.call('DEL', key)
local received = 0
if ARGV[2] ~= '' then -- to publish may be forbidden; the lock is released all the same
  local reply = redis.pcall('PUBLISH', ARGV[3], '0')
  if type(reply) == 'number' then
    received = reply
  end
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', ARGV[3], '0')
  end
end
if was == 0 then
  return 0
end
return 1 + received
