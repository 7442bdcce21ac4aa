-- Makes a hold the owner of a lock, unless another hold has it. It does not wait in the queue.
--
-- KEYS     the lock's key; then, as far as there are any, the fencing counter, the key of a reader's own lease, and the queue
-- ARGV[1]  the hold's value, "<registry>:<number>"
-- ARGV[2]  the lease in milliseconds
-- ARGV[3]  the registry's prefix; empty or missing: there is no queue, or it does not matter, and no key is one
-- ARGV[4]  with a queue: reserve, to wait without a ticket; a reader does not overtake waiting calls; try, for a call that will
--          have a ticket; seen, not to wait, but to leave a trace for waiting calls
-- ARGV[5]  S on a cluster
-- ARGV[6]  2: the second key is the fencing counter; else its key, where the server refuses to have it named as one. Empty or
--          missing: no token is wanted
-- ARGV[7]  for a reader: the value of the writer's hold that its owner has; empty or missing: none. For a semaphore "<each>
--          <number>": how many permits the hold has, and how many there are
--
-- Replies nil if granted, or "granted" and the token. Else the rest of the holder's lease in milliseconds; -1: it has no end. For
-- a semaphore that has another number of permits than the call has named, the reply has that number, too: "granted", the token or
-- 0, and the number; or "taken", the milliseconds, and the number.
--
-- A value of the same registry with a smaller number is a grant whose reply was lost: the registry asks only while no other
-- call of it uses the path, so that hold is not in use, and this one takes over. A larger number means that this very command
-- was delayed until after a later hold: it must not win.

--# head
local key, value, lease, prefix, asks = KEYS[1], ARGV[1], ARGV[2], ARGV[3] or '', ARGV[4] or ''
local sharded, counter, under = ARGV[5] == 'S', ARGV[6] or '', ARGV[7] or ''
if counter == '2' then
  counter = KEYS[2]
end

--# operation
local state, awaited, left = holder(value)
if state == 'wrong' then
  return redis.error_reply(awaited)
end
--# decision
if state == 'taken' or state == 'later' then
  if asks == 'reserve' or asks == 'seen' then
    trace()
  end
  return left or redis.call('PTTL', key)
end
return fence() or take(value, lease, side, awaited) or token and {'granted', token}
