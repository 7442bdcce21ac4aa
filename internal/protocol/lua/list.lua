-- Notes in the list of a prefix's registries that one of them has written its record, and drops from the list those whose records
-- have expired. So others find the records without a SCAN of all keys.
--
-- KEYS[1]  the list: a sorted set of registries, by when each last told that, in milliseconds since 1970 by this server
-- ARGV[1]  the registry
-- ARGV[2]  for how many milliseconds a record lasts at most
-- ARGV[3]  a process that has not told it for so many milliseconds is dead, most likely
-- ARGV[4]  how many records of such processes are kept
--
-- Replies the registries beyond that, the oldest, 100 at most. They are off the list, and the caller ends their records.
if not redis.REDIS_VERSION_NUM and redis.replicate_commands then -- see effects.lua
  redis.replicate_commands()
end
local key, lasts, many = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', key, string.format('%.0f', now), ARGV[1])
local done = redis.pcall('PEXPIRE', key, lasts)
if type(done) == 'table' then -- it is forbidden: the list would stay for ever, and grow
  redis.call('ZREM', key, ARGV[1])
  return done
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', now - lasts), 'LIMIT', 0, 100)) do
  redis.call('ZREM', key, name)
end
local silent, ended = string.format('%.0f', now - tonumber(ARGV[3])), {}
local dead = redis.call('ZRANGEBYSCORE', key, '-inf', silent, 'LIMIT', 0, many + 100)
for i = 1, #dead - many do
  redis.call('ZREM', key, dead[i])
  ended[i] = dead[i]
end
return ended
