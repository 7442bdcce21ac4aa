-- Ends a hold that reads under a read-write lock in Redisson's format. When nobody has the lock any more those in front in
-- its queue get it, or it is removed, and that is published.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  the name as it stands in derived keys
-- ARGV[5]  and so on, and the reply: as those of redisson_release.lua; ARGV[8] is for plain locks
--
-- Replies 0 when nobody has the lock, -1 when others have, and the hold was not there or its lease was over. Else
-- the reply is 1, 2 when others wait in the queue or have the lock now, or a text that says why there is no queue. In any case the hold
-- is gone now.
-- include effects
local key, value, name, prefix, sharded = KEYS[1], ARGV[1], ARGV[4], ARGV[5] or '', ARGV[6] == 'S'
local age, ticket, message, announced, reply = tonumber(ARGV[9]) or 0, ARGV[7] or '', '0', false, 1
local was = redis.call('DEL', name .. ':' .. value .. ':rwlock_timeout:1')
local mine, mode = redis.call('HDEL', key, value) == 1, false
if mine and redis.call('HLEN', key) > 1 then -- the mode, and others
  -- include settle
  mode = settle()
elseif mine then
  redis.call('DEL', key)
end
local turn = mine and not mode
-- include depart
if mine and not mode and not announced and ARGV[2] ~= '' then -- which may be forbidden; the lock is released all the same
  redis.pcall('PUBLISH', ARGV[3], '0')
  if ARGV[2] == 'SPUBLISH' then -- to which Redisson listens in a cluster
    redis.pcall('SPUBLISH', ARGV[3], '0')
  end
end
return mine and was == 1 and reply or -redis.call('EXISTS', key)
