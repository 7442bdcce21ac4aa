-- Tells whether a writer waits for a read-write lock, so that those who come to read are to be kept out. A process asks that
-- in which readers share a hold.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the lock's channel
-- ARGV[2]  the name as it stands in derived keys
-- ARGV[3]  the registry's prefix
-- ARGV[4]  S on a cluster
--
-- Replies 1 if so, else 0.
--
-- A writer shows by its ticket, by a guest, see guest.lua, or by being subscribed to the channel: as Redisson's are, and, to
-- "<channel>:waiting", those of this library before it had tickets. For one that is subscribed, too, a guest keeps the readers of
-- other processes out.
-- include effects
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
-- include guest
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
if entries[5] == 'guest' and stale(entries[6], now) then
  dismiss(now)
  entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
end
local _, waits = pass(entries, false)
if waits then
  return 1
end
for _, numsub in ipairs(sharded and {'NUMSUB', 'SHARDNUMSUB'} or {'NUMSUB'}) do
  local counts = redis.call('PUBSUB', numsub, ARGV[1], ARGV[1] .. ':waiting')
  if counts[2] > 0 or counts[4] > 0 then
    local invited = pcall(invite)
    return (not invited or redis.call('ZSCORE', queue, 'guest')) and 1 or 0
  end
end
return 0
