-- Removes several locks, each if a hold has it and nobody waits for it. A script obtained them at a server behind a proxy to which
-- no other command about them comes, see readback.go.
--
-- KEYS  the locks' keys
-- ARGV  the holds' values
--
-- Replies how many it removed.
local removed = 0
for i, key in ipairs(KEYS) do
  local kind = redis.pcall('TYPE', key)
  kind = kind.ok or kind
  if kind == 'hash' then
    removed = removed + (tonumber(redis.pcall('HDEL', key, ARGV[i])) or 0)
  elseif kind == 'string' and redis.pcall('GET', key) == ARGV[i] then
    local done = redis.pcall('UNLINK', key) -- the user may lack permission for one of the two
    removed = removed + (tonumber(done) or tonumber(redis.pcall('DEL', key)) or 0)
  end
end
return removed
