-- Ends a hold of a lock that nobody waits for, as most are: its value has no mark. Where others do, or the hold is over, it is as
-- spring_release.lua.
--
-- KEYS[1]             the lock's key
-- ARGV[1] to ARGV[4]  as those of spring_release.lua
-- ARGV[5]             as ARGV[9] of that
local key, value, publish = KEYS[1], ARGV[1], ARGV[2]
if redis.call('GET', key) == value then -- mutant: anybody's key removed
  -- include spring_remove
end
-- include effects
local prefix, sharded, ticket, removal, old, keep, age = ARGV[3], ARGV[4] == 'S', '', 'UNLINK', '', '', tonumber(ARGV[5]) or 0
-- include spring_end
