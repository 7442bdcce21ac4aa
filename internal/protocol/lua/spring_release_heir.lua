-- Ends a hold of a lock that is contested all the time, when the registry knows that no window is open or due: gives the key to the
-- first who waits, or removes it when nobody does. Where that does not do, it is as spring_release.lua.
--
-- KEYS[1]             the lock's key
-- ARGV[1] to ARGV[4]  as those of spring_release.lua
-- ARGV[5]             when the next window is due, in milliseconds of the server's clock
-- ARGV[6]             n when the one behind the first is to be told that it is the next one; empty or missing: it is not
-- include effects
local key, value, publish, prefix, sharded, due = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'S', ARGV[5]
if redis.call('GET', key) == value .. '+' then -- else the long way is the right one
  -- include names
  local first = redis.pcall('ZRANGE', queue, '2', ARGV[6] == 'n' and '3' or '2') -- those in front are no tickets, see serve.lua
  if first[1] then
    local mark = '+'
    local function own(name, lease)
      return not redis.pcall('SET', key, name, 'PX', lease).err
    end
    -- include heir
  elseif not first.err then
    -- include spring_remove
  end
end
local ticket, removal, old, keep, age = '', 'UNLINK', '', '', 0
-- include spring_end
