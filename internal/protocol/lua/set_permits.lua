-- Sets the number of permits, for good. Waiting calls get added permits at once. Holds keep their permits.
--
-- KEYS     the semaphore's key; the queue, if there is one
-- ARGV[1]  the number
-- ARGV[2]  empty
-- ARGV[3]  the registry's prefix; empty: there is no queue
-- ARGV[4]  empty
-- ARGV[5]  S on a cluster
-- ARGV[6]  the beginning of the names of the channels of releases; empty or missing: publish nothing
--
-- Replies the previous number; 0 if there was none.

--# head
local key, number, prefix, sharded, channels = KEYS[1], ARGV[1], ARGV[3] or '', ARGV[5] == 'S', ARGV[6] or ''
local value = '' -- of no hold

--# operation
if not count() then
  return redis.error_reply(wrong())
end
local persisted = redis.pcall('PERSIST', key) -- first, since without it nothing may change
if type(persisted) == 'table' then
  local why = persisted.err
  if string.find(why, "can't run", 1, true) or string.find(why, 'no permissions to run', 1, true) then
    why = 'NOPERM the user lacks +persist, so the number of permits was not changed' -- before 7.0 a server says no command
  end
  return redis.error_reply(why)
end
local before = limit
limit, stored = tonumber(number), true
redis.call('ZADD', key, -limit, 'permits')

local function serve()
  grantNext(time[1] * 1000000 + time[2], nil, heads(redis.call('ZRANGE', queue, '0', '2', 'WITHSCORES')))
end

if queue then
  pcall(serve)
end
if free('r') then
  announce()
end
return before
