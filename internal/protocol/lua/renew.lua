-- Renews the lease of a hold, if it still has its lock.
--
-- KEYS     the lock's key; then, as far as there are any, the fencing counter, and the key of a reader's own lease
-- ARGV[1]  the hold's value
-- ARGV[2]  the lease in milliseconds; empty or missing: the lease stays, and the reply says whether the hold has the lock
-- ARGV[3]  2: the second key is the fencing counter, from which to draw a token; else as ARGV[6] of obtain.lua
--
-- Replies 1, or the token, if renewed; 0 if the lock is free, or the hold's lease is over; -1 if another hold has the lock.

--# head
local key, value, lease, counter, under, asks = KEYS[1], ARGV[1], ARGV[2] or '', ARGV[3] or '', '', ''
if counter == '2' then
  counter = KEYS[2]
end

--# operation
local state = holder(value)
if state ~= 'mine' then
  return state == 'free' and 0 or -1
end
local refused = fence()
if refused then
  return refused
end
return (lease == '' or extend(value, lease)) and (token or 1) or 0
