-- Makes holds the owners of several locks, unless other holds have one of them: then it changes nothing.
--
-- KEYS     the locks' keys; then the fencing counter of each, if tokens are wanted
-- ARGV[1]  the number of locks
-- ARGV[2]  the lease in milliseconds
-- ARGV[6]  and so on: the holds' values
--
-- Replies the tokens, 0 where none is wanted; or, as a number, the index of a key that another hold has, negative if the key is
-- no such lock. Values of the same registry are as in obtain.lua. What the server refuses, it refuses for the first key, before
-- anything has changed.

--# head
local n, key, counter = tonumber(ARGV[1]), KEYS[1], ''

--# operation
local waited = {}
for i = 1, n do
  key = KEYS[i] -- mutant: last path alone
  local ok, state, awaited = pcall(holder, ARGV[5 + i])
  if not ok then
    local why = type(state) == 'table' and state.err or state
    return string.find(why, 'WRONGTYPE') and -i or redis.error_reply(why)
  elseif state == 'wrong' then
    return -i
  elseif state == 'taken' or state == 'later' then -- mutant: late paths win
    return i -- mutant: paths obtained in part
  end
  waited[i] = awaited
end
local tokens = {}
for i = 1, n do
  counter = KEYS[n + i] or ''
  local refused = fence()
  if refused then
    return refused
  end
  tokens[i] = token or 0
end
for i = 1, n do
  key = KEYS[i]
  local refused = take(ARGV[5 + i], ARGV[2], '', waited[i])
  if refused then
    return refused
  end
end
return tokens
