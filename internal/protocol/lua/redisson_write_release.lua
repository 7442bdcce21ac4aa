-- Ends the hold that writes under a read-write lock in Redisson's format. Those in front in its queue get the lock, or it is
-- removed, and that is published. When the same owner reads it goes on to do so, and other readers may come in.
--
-- KEYS[1]  the lock's name: a hash, see redisson_read_obtain.lua
-- ARGV[1]  the hold's field, less ':write'
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  the name as it stands in derived keys
-- ARGV[5]  and so on, and the reply: as those of redisson_release.lua; ARGV[8] is for plain locks
--
-- Replies 0 when the hold was not there, -1 when others have the lock. When it was it is gone now, and the reply is 1, 2 when others wait in the queue or
-- have the lock now, or a text that says why there is no queue.
--
-- Where somebody receives the message, which is 1, another one follows, 0. To a client of Redisson, 1 means to wake the
-- threads that sleep at this moment. One that has just tried in vain and is about to sleep is not among them, and would
-- sleep until the lease that it saw is over. 0 wakes one more thread, and if none sleeps, the next one that is about to.
-- include effects
local key, value, name, prefix, sharded = KEYS[1], ARGV[1], ARGV[4], ARGV[5] or '', ARGV[6] == 'S'
local age, ticket, message, announced, reply = tonumber(ARGV[9]) or 0, ARGV[7] or '', '1', false, 1
local mine, mode = redis.call('HDEL', key, value .. ':write') == 1, false
if mine and redis.call('HLEN', key) > 1 then -- the mode, and its reader
  -- include settle
  mode = settle()
elseif mine then
  redis.call('DEL', key)
end
local turn = mine
-- include depart
if mine and mode ~= 'write' and not announced then -- others may read, or nobody has the lock
  -- include publish
  publish()
end
return mine and reply or -redis.call('EXISTS', key)
