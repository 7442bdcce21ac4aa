-- Ends a hold, if its key still belongs to it: gives the key to the first who waits in the lock's queue, or removes it and
-- publishes that.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  what the name of the key's channel begins with; empty or missing: publish nothing
-- ARGV[3]  the registry's prefix; empty or missing: there is no queue
-- ARGV[4]  S on a cluster
-- ARGV[5]  the ticket of a call that leaves the queue; *: all of its registry up to this number; +: no ticket, but others
--          wait in the process that releases, and are not to have it at once; !: none, and no long window; empty: none
-- ARGV[6]  the command that removes a key; empty or missing: UNLINK
-- ARGV[7]  one more channel to publish on; empty or missing: none
-- ARGV[8]  how long the path is to stay taken, in milliseconds; empty or missing: no longer
-- ARGV[9]  for how long the hold had the lock, and its call waited for it in the queue, in milliseconds; empty or missing: not for
--          long, or that is not known
--
-- Replies 0 when the key was not the hold's, or -1 when it is another's. When it was the reply is 1, 2 when others wait in the queue or one of them has
-- the key now, or a text that says why there is no queue.
--
-- A value of the same registry with a smaller number is a grant that came late, as in spring_obtain.lua. The registry asks
-- for this removal only when all holds of the path up to this one are over, so nobody uses it, and it is removed too.
--
-- A path that is to stay taken gets the value "<value>:atleast": no registry takes that for one of its own, since no number
-- follows the last colon. Nobody is granted the lock, or told that it is free: who waits sees that the lease has changed.
-- include effects
local key, value, publish, prefix, sharded = KEYS[1], ARGV[1], ARGV[2] or '', ARGV[3] or '', ARGV[4] == 'S'
local ticket, old, keep, age = ARGV[5] or '', ARGV[7] or '', ARGV[8] or '', tonumber(ARGV[9]) or 0
local removal = (ARGV[6] or '') ~= '' and ARGV[6] or 'UNLINK'
-- include spring_end
