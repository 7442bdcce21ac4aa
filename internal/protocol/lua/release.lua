-- Ends a hold, if it still has its lock: gives the lock to the first ticket in its queue, or leaves it free and publishes that.
--
-- KEYS     the lock's key; then, as far as there are any, the key of a reader's own lease, and the queue
-- ARGV[1]  the hold's value
-- ARGV[2]  the beginning of the names of the channels of releases; empty or missing: publish nothing
-- ARGV[3]  the registry's prefix; empty or missing: there is no queue, and no key is one
-- ARGV[4]  quiet: no process is known to try without a ticket, see internal/barging; empty or missing: one may
-- ARGV[5]  S on a cluster
-- ARGV[6]  yield: others wait in the process that releases, and must let other processes go first; lead: a leader's hold, for
--          which no long window is due, since it does not matter who leads; empty or missing: none of these
-- ARGV[7]  a ticket of a call that leaves the queue; empty or missing: none
-- ARGV[8]  how long the path stays taken, in milliseconds; empty or missing: no longer
-- ARGV[9]  the command that removes a key; empty or missing: UNLINK
-- ARGV[10] one more channel to publish on; empty or missing: none
-- ARGV[11] and so on: more tickets like ARGV[7]
--
-- Replies 0 if the lock was not the hold's and is free, -1 if it belongs to another hold, or the lease of this one is over. If
-- the lock was the hold's, the reply is 1; 2 if others wait in the queue or one of them has the lock now; or a text that says why
-- there is no queue.
--
-- A value of the same registry with a smaller number is a grant that came late, as in obtain.lua. The registry asks for this
-- removal only when all holds of the path up to this one are over, so that grant is not in use, and is removed, too.

--# head
local key, value, channels, plain = KEYS[1], ARGV[1], ARGV[2] or '', not ARGV[6]

--# queue
local prefix, sharded = ARGV[3] or '', ARGV[5] == 'S'
local quiet = (ARGV[4] or '') ~= ''
local direct = false -- a format with a short way to the first ticket sets it: the lock is the hold's, and nobody else's

--# arguments
local yields, leads = ARGV[6] == 'yield', ARGV[6] == 'lead'
local keep, removal, old = ARGV[8] or '', ARGV[9] or '', ARGV[10] or ''

--# drop
local state, turn = drop(value, keep) -- turn: the lock is free for more calls than before
local leaves = (ARGV[7] or '') ~= ''
local gone = false -- the reply, if the lock was not the hold's
if state ~= 'mine' then
  gone = state ~= 'ours' and (state == 'wrong' or not free('w')) and -1 or 0
end
if not turn and not leaves and not yields then
  return gone or 1
end

--# operation
local reply, failed, opens = 1, false, turn
if prefix ~= '' then
  local entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
  if leaves and entries[1] then
    -- Removes the tickets of a call that leaves. If another ticket is the first one then, its process is told: it must watch the
    -- key now. The work must not grow with the queue: the slower the server, the more calls leave.
    local function dequeue()
      local first = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
      redis.call('ZREM', queue, ARGV[7], unpack(ARGV, 11)) -- mutant: one ticket of several
      local next = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
      if next and next ~= first then
        warn(next, 'n', math.max(redis.call('PTTL', key), 0))
      end
    end
    pcall(dequeue)
    entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    opens = turn or free('r') ~= free('w') -- a writer's ticket may have kept readers out
  end
  if entries.err then
    reply = entries.err
  elseif opens and (entries[1] or yields) then -- mutant: grant not passed on
    local ok, served, others = pcall(passOn, entries)
    failed = not ok
    reply = failed and (type(served) == 'table' and served.err or served) or (served or others) and 2 or 1
  elseif entries[5] then
    reply = 2
  end
end
-- After a failure the lock may be granted without a message, or its key not removed. If this is refused, too, the script fails.
if failed and announced then -- the key cannot be removed twice if its slot is being moved
  pcall(announce)
elseif failed or turn and not announced and free(side == 'r' and 'w' or 'r') then -- a reader that leaves may let writers in
  announce()
end
return gone or reply
