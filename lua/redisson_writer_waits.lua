-- Tells whether a writer waits for a read-write lock, so that those who come to read are to be kept out. A process asks that
-- in which readers share a hold.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the lock's channel
-- ARGV[2]  the name as it stands in derived keys
-- ARGV[3]  the registry's prefix
-- ARGV[4]  S on a cluster
-- ARGV[5]  guest: the readers of this process come and go, and have had the lock for a while; else empty
--
-- Replies 1 if so; 0 if not; 2 if not, and a guest has gone in vain.
--
-- A writer shows by its ticket, or by being subscribed to the channel. One that does neither, and tries now and then, cannot
-- be seen. For it a guest is put in the queue, after 1.7 s without a window: readers do not come in past it, those of other
-- processes neither, and when all are out the release leaves the lock free for 110 ms. Processes ask each 100 ms; when readers
-- are not out after 200 ms such a writer would hardly get in either way, and the guest goes.
local key, name, prefix, sharded = KEYS[1], ARGV[2], ARGV[3], ARGV[4] == 'S'
local mode = redis.call('HGET', key, 'mode')
if mode ~= 'read' then
  return 0
end
-- include names
-- include grant
-- include admit
local age = 0
local function announce()
  return 0
end
-- include pass
if not redis.REDIS_VERSION_NUM then -- before version 7 a script may be replicated, and then cannot ask for the time
  redis.replicate_commands()
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
local none = 0
if entries[5] == 'guest' and now - entries[6] / 1000 >= PATIENCE then
  dismiss(now)
  none = 2
  entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
end
local _, waits = pass(entries, false)
if waits or redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2] > 0
  or sharded and redis.call('PUBSUB', 'SHARDNUMSUB', ARGV[1])[2] > 0 then
  return 1
end
if none == 2 or (ARGV[5] or '') == '' then
  return none
end
local wide = tonumber(redis.call('ZSCORE', queue, 'wide'))
if wide and now + wide < RARELY then
  return 0
end
redis.call('ZADD', queue, 'NX', -now, 'open', -now, 'wide', string.format('%.0f', time[1] * 1000000 + time[2]), 'guest')
redis.call('PEXPIRE', queue, 120000)
return 1
