-- Ends the holds of several locks that nobody waits for. What it leaves is for release.lua, one lock after another.
--
-- KEYS     the locks' keys; then their queues, where only those show whether somebody waits
-- ARGV[1]  the number of locks
-- ARGV[2]  the beginning of the names of the channels of releases; empty or missing: publish nothing
-- ARGV[3]  the command that removes a key; empty or missing: UNLINK
-- ARGV[4]  one more channel to publish on; empty or missing: none
-- ARGV[5]  S on a cluster
-- ARGV[6]  and so on: the holds' values
--
-- Replies for each lock 1 if it was the hold's, nobody waited, and it is free now; else 0, and nothing has changed: it is another
-- hold's, others wait, it is no such lock, a command is not permitted, or a proxy keeps it on another server.

--# head
local n, channels, removal, old, sharded = tonumber(ARGV[1]), ARGV[2] or '', ARGV[3] or '', ARGV[4] or '', ARGV[5] == 'S'

--# release alone
-- Removes a lock, and publishes that, if the hold with this value has it and nobody waits. Returns whether it did. Publishing may
-- be forbidden; the lock is released all the same.
local function releaseAlone()
  return false
end

--# operation
local released = {}
for i = 1, n do
  released[i] = releaseAlone(KEYS[i], ARGV[5 + i], KEYS[n + i]) and 1 or 0
end
return released
