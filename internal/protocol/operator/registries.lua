-- Returns the registries in the list of a prefix, see list.lua, and changes nothing.
--
-- KEYS[1]  the list
-- ARGV[1]  how many at most
-- ARGV[2]  how long a name may be; longer ones are left out
--
-- Replies an array with one element, an array of names.
local kind, names = redis.call('TYPE', KEYS[1]), {}
if (kind.ok or kind) == 'zset' then
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, ARGV[1])) do
    if #name <= tonumber(ARGV[2]) then
      names[#names + 1] = name
    end
  end
end
return {names}
