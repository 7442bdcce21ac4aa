-- Removes several locks, each if a hold has it and nobody waits for it. A script obtained them at a server behind a proxy to which
-- no other command about them comes, see readback.go.
--
-- KEYS  the locks' keys
-- ARGV  the holds' values; empty or missing: that key stays
--
-- Replies how many it removed.
local removed = 0
for i, key in ipairs(KEYS) do
  local value = ARGV[i] or ''
  local kind = value ~= '' and redis.pcall('TYPE', key) or {}
  kind = kind.ok or kind
  if kind == 'hash' then
    removed = removed + (tonumber(redis.pcall('HDEL', key, value)) or 0)
  elseif kind == 'string' and redis.pcall('GET', key) == value then
    local done = redis.pcall('UNLINK', key) -- the user may lack permission for one of the two
    removed = removed + (tonumber(done) or tonumber(redis.pcall('DEL', key)) or 0)
  end
end
return removed
