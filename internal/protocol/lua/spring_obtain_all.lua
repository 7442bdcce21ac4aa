-- Makes holds the owners of several locks, if nobody else holds any of them; else it changes nothing.
--
-- KEYS     the locks' keys
-- ARGV[1]  how many these are; more keys may follow
-- ARGV[2]  the lease in milliseconds
-- ARGV[6]  and so on: the holds' values; then for each the key of its fencing counter, if tokens are wanted
--
-- Replies the tokens, 0 where none is wanted, or, as a number, the place of a key that somebody else holds, below zero of one that
-- is no such lock. Values of the same
-- registry are as in spring_obtain.lua. What the server refuses it refuses for the first key, before anything has changed.
-- include effects
local n, counter = tonumber(ARGV[1]), ARGV[6 + ARGV[1]] or ''
-- include draw
-- include fence
local marks = {} -- see held.lua
for i = 1, n do
  local held, registry, number = redis.pcall('GET', KEYS[i]), string.match(ARGV[5 + i], '^(.*:)(%d+)$')
  if type(held) == 'table' then
    return string.find(held.err, 'WRONGTYPE') and -i or held
  elseif held then
    if string.sub(held, -1) == '+' then
      held, marks[i] = string.sub(held, 1, -2), '+'
    end
    local other = string.sub(held, 1, #registry) == registry and tonumber(string.sub(held, #registry + 1))
    if not other or other > tonumber(number) then -- mutant: late paths win
      return i -- mutant: paths obtained in part
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
  redis.call('SET', KEYS[i], ARGV[5 + i] .. (marks[i] or ''), 'PX', ARGV[2])
end
return tokens
