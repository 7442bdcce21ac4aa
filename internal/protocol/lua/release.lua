-- Ends a hold, if it still has its lock: gives the lock to the first who waits in its queue, or leaves it free and publishes that.
--
-- KEYS[1]  the lock's key
-- ARGV[1]  the hold's value
-- ARGV[2]  what the names of the channels of releases begin with; empty or missing: publish nothing
-- ARGV[3]  the registry's prefix; empty or missing: there is no queue
-- ARGV[4]  quiet, when nobody is known of who tries without a ticket; direct, when the process has looked for windows a moment ago, and
--          the hold and all that wait have joined the queue a moment ago; empty or missing: neither. See fairness.go
-- ARGV[5]  S on a cluster
-- ARGV[6]  yield, when others wait in the process that releases, and are not to have the lock at once; lead, when it matters that
--          somebody has the lock, not who: no long window is due; leave, when the call leaves the queue with all tickets of its registry
--          up to this hold's; empty or missing: none of that
-- ARGV[7]  the ticket of a call that leaves the queue; empty or missing: there is none
-- ARGV[8]  how long the path is to stay taken, in milliseconds; empty or missing: no longer
-- ARGV[9]  the command that removes a key; empty or missing: UNLINK
-- ARGV[10] one more channel to publish on; empty or missing: none
--
-- Replies 0 when the lock was not the hold's and is free, -2 when it is a plain lock and a later hold's of the same registry, or -1 when it
-- is another's, or has a hold's lease that is over. When it was the reply is 1, 2 when others wait in the queue or one of them has the lock
-- now, or a text that says why there is no queue.
--
-- A value of the same registry with a smaller number is a grant that came late, as in obtain.lua. The registry asks for this removal
-- only when all holds of the path up to this one are over, so nobody uses it, and it is removed too.

--# head
local key, value, channels, usual = KEYS[1], ARGV[1], ARGV[2] or '', not ARGV[6]

--# queue
local prefix, sharded = ARGV[3] or '', ARGV[5] == 'S'
local direct = usual and ARGV[4] == 'direct' -- the lock may go to the first ticket without further questions

--# arguments
-- One that was to be direct is followed by one within 100 ms that says whether it is quiet: that leaves the windows.
local quiet, yields, leads = (ARGV[4] or '') ~= '', ARGV[6] == 'yield', ARGV[6] == 'lead'
local keep, removal, old = ARGV[8] or '', ARGV[9] or '', ARGV[10] or ''

--# drop
local state, turn = drop(value, keep) -- turn: somebody may come in who could not before
local leaves = ARGV[6] == 'leave' or (ARGV[7] or '') ~= ''
local gone = state ~= 'mine' and (state == 'later' and -2 or state ~= 'ours' and (state == 'wrong' or not free('w')) and -1 or 0)
if not turn and not leaves and not yields then
  return gone or 1
end

--# operation
local reply, failed, opens = 1, false, turn
if prefix ~= '' then
  local entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
  if leaves and entries[1] then
    -- Removes the tickets of a call that leaves: this one, or those of its registry up to the hold's. The ticket that is then the first one
    -- is told: it is to watch the key now.
    local function dequeue(ticket)
      local first = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
      if ticket ~= '' then
        redis.call('ZREM', queue, ticket)
      else
        local registry, number = string.match(value, '^(.*):(%d+)$')
        for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '+inf')) do
          local other, n = string.match(member, '^(.*):(%d+)|%d+[rw]?$')
          if other == registry and tonumber(n) <= tonumber(number) then
            redis.call('ZREM', queue, member)
          end
        end
      end
      local next = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
      if next and next ~= first then
        warn(next, 'n', math.max(redis.call('PTTL', key), 0))
      end
    end
    pcall(dequeue, ARGV[7] or '')
    entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    opens = turn or free('r') ~= free('w') -- a writer's ticket may have kept readers out
  end
  if entries.err then
    reply = entries.err
  elseif opens and (entries[1] or yields) then -- mutant: grant not passed on
    local ok, served, others = pcall(handOver, entries)
    failed = not ok
    reply = failed and (type(served) == 'table' and served.err or served) or (served or others) and 2 or 1
  elseif entries[5] then
    reply = 2
  end
end
-- What has failed may have granted the lock without telling, or not have removed it. When this is refused too, the script fails.
if failed and announced then -- the key cannot be removed twice where its slot is moved away
  pcall(announce)
elseif failed or turn and not announced and free(side == 'r' and 'w' or 'r') then -- a reader that has left lets writers in
  announce()
end
return gone or reply
