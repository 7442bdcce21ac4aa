-- Returns the records of some registries, and changes nothing.
--
-- KEYS     their records
-- ARGV[1]  how long a record may be
--
-- Replies the records, each with the milliseconds until it expires: empty if there is none, a number if it is longer: its length.
local records = {}
for i, key in ipairs(KEYS) do
  local kind, length = redis.call('TYPE', key), 0
  if (kind.ok or kind) == 'string' then
    length = redis.call('STRLEN', key)
  end
  if length > tonumber(ARGV[1]) then
    records[i] = length
  else
    records[i] = length > 0 and {redis.call('GET', key), redis.call('PTTL', key)} or ''
  end
end
return records
