-- Ends a hold of a lock in Redisson's format that is contested all the time, when the registry knows that no window is open or due.
-- Where that does not do, it is as redisson_release.lua.
--
-- KEYS[1]             the lock's name: a hash
-- ARGV[1] to ARGV[3]  as those of redisson_release.lua
-- ARGV[4]             the registry's prefix
-- ARGV[5]             S on a cluster
-- ARGV[6]             when the next window is due, in milliseconds of the server's clock
-- ARGV[7]             warn when the one behind the first is to be told that it is the next one; empty or missing: it is not
-- include effects
local key, field, command, news, prefix, sharded, due = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == 'S', ARGV[6]
if redis.call('HEXISTS', key, field) == 1 and redis.call('HEXISTS', key, 'mode') == 0 then
  -- include names
  local first = redis.pcall('ZRANGE', queue, '2', ARGV[7] == 'warn' and '3' or '2') -- those in front are no tickets, see serve.lua
  if first[1] then
    local value, holder, mark = field, field, ''
    local function own(name, lease)
      if type(redis.pcall('HSET', key, name, '1')) == 'table' then
        return false
      end
      if type(redis.pcall('HDEL', key, holder)) == 'table' then -- it is forbidden
        redis.call('DEL', key)
        redis.call('HSET', key, name, '1')
      end
      redis.call('PEXPIRE', key, lease)
      holder = name
      return true
    end
    -- include heir
  end
end
local ticket, keep, age = '', '', 0
-- include redisson_end
