-- Makes holds the owners of several locks in Redisson's format, if nobody else holds any of them; else it changes nothing.
--
-- KEYS, ARGV, and the reply: as in obtain_all.lua, with the holds' fields for values
local n, counter = tonumber(ARGV[1]), ARGV[6 + ARGV[1]] or ''
-- include redisson_draw
-- include fence
for i = 1, n do
  local fields, registry, number = redis.pcall('HKEYS', KEYS[i]), string.match(ARGV[5 + i], '^(.*:)(%d+)$')
  if fields.err then
    return string.find(fields.err, 'WRONGTYPE') and -i or fields
  end
  for _, held in ipairs(fields) do
    if held == 'mode' then -- a read-write lock
      return -i
    end
    local other = string.sub(held, 1, #registry) == registry and tonumber(string.sub(held, #registry + 1))
    if not other or other > tonumber(number) then -- mutant: late paths win, Redisson
      return i
    end
  end
end
local tokens = {}
for i = 1, n do
  counter = ARGV[5 + n + i] or ''
  local refused = fence()
  if refused then
    return refused
  end
  tokens[i] = token or 0
end
for i = 1, n do
  redis.call('DEL', KEYS[i])
  redis.call('HSET', KEYS[i], ARGV[5 + i], '1')
  local done = redis.pcall('PEXPIRE', KEYS[i], ARGV[2])
  if type(done) == 'table' then -- a hash without a lease would stay for ever
    redis.call('DEL', KEYS[i])
    return done
  end
end
return tokens
