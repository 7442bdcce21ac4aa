-- Asks whether a writer waits for a read-write lock, so that new readers must be kept out. A process whose readers share a hold
-- asks this.
--
-- KEYS     the lock's key, and the queue
-- ARGV[1]  the beginning of the name of the channel of releases
-- ARGV[2]  the registry's prefix
-- ARGV[3]  S on a cluster
--
-- Replies 1 if so, else 0.
--
-- A writer shows by its ticket, by a reservation, or by a subscription to the channel: writers of Redisson subscribe, and, to
-- "<channel>:waiting", writers of this library before it had tickets. For a subscribed writer a reservation is made, too, which
-- keeps out the readers of other processes.

--# head
local key, channels, prefix, sharded = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == 'S'
if redis.call('HGET', key, 'mode') ~= 'read' then
  return 0
end

--# operation
mode = 'read'
local time = redis.call('TIME')
local entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
if entries[5] == 'guest' and expire(entries[6], time) then
  entries = redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')
end
if grantNext(time[1] * 1000000 + time[2], nil, heads(entries)) then -- readers in front of it get the lock
  return 1
end
for _, numsub in ipairs(sharded and {'NUMSUB', 'SHARDNUMSUB'} or {'NUMSUB'}) do
  local counts = redis.call('PUBSUB', numsub, channels .. name, channels .. name .. ':waiting')
  if counts[2] > 0 or counts[4] > 0 then
    local reserved = pcall(placeGuest)
    return (not reserved or redis.call('ZSCORE', queue, 'guest')) and 1 or 0
  end
end
return 0
