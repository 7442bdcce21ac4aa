-- Ends a hold of a lock in Redisson's format, if it still has it: gives the lock to the first who waits in its queue, or
-- removes it and publishes that.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field
-- ARGV[2]  PUBLISH, SPUBLISH to publish in both ways, or empty
-- ARGV[3]  the lock's channel
-- ARGV[4]  is for read-write locks
-- ARGV[5]  for the queue, and so on, as ARGV[3] to ARGV[5] of spring_release.lua
-- ARGV[8]  how long the path is to stay taken, in milliseconds; empty or missing: no longer
--
-- Replies 0 when the lock was not the hold's. When it was the reply is 1, 2 when others wait in the queue or one of them
-- has the lock now, or 3 when there can be no queue.
--
-- A field of the same registry with a smaller number is a grant that came late, and is removed too; see spring_release.lua. A
-- path that is to stay taken gets the field "<field>:atleast". That is published, since Redisson's waiters sleep for as long as
-- the lease that they have seen.
local key, field, command, news, prefix, sharded = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[5] or '', ARGV[6] == 'S'
local ticket, keep = ARGV[7] or '', ARGV[8] or ''
-- include redisson_end
