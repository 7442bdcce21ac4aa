-- Ends a hold of a lock that nobody waits for, as most are. Where others do, or the hold is over, it is as spring_release.lua.
--
-- KEYS[1]             the lock's key
-- ARGV[1] to ARGV[4]  as those of spring_release.lua
local key, value, publish, prefix, sharded = KEYS[1], ARGV[1], ARGV[2] or '', ARGV[3] or '', ARGV[4] == 'S'
if redis.call('GET', key) == value then
  -- include names
  local first = redis.pcall('EXISTS', queue) ~= 0 and redis.pcall('ZRANGE', queue, '2', '2') -- those in front are no tickets
  if not first or not first[1] and not first.err then
    -- include spring_remove
  end
end
local ticket, removal, old, keep = '', 'UNLINK', '', ''
-- include spring_end
