-- Makes a hold the owner of a lock in Redisson's format, if nobody else holds it. If told so, waits in its queue.
--
-- KEYS[1]  the lock's name: a hash
-- ARGV[1]  the hold's field, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3], ARGV[4]  are for read-write locks
-- ARGV[5]  and so on, and the reply: for the queue, ARGV[10] for the token and ARGV[11] for the ticket, as ARGV[3] and so on of
--          spring_obtain.lua
--
-- Replies nil when granted, or "granted" and the token, else without a queue the milliseconds that the holder's lease has left (-1: it has no end).
--
-- A field of the same registry with a smaller number is a grant whose reply was lost, and is taken over; a larger number
-- means that this very command is late.
-- include effects
local key, field, lease, how, prefix, sharded = KEYS[1], ARGV[1], ARGV[2], ARGV[5] or '', ARGV[6], ARGV[7] == 'S'
local place, older, counter, zeros = ARGV[8] or '', ARGV[9] or '', ARGV[10] or '', ARGV[11] or ''
-- include redisson_claim
