-- A draw for fence.lua from the counter of Redisson's RFencedLock, which adds one to it for each token and never removes it.
local function draw()
  local last = redis.pcall('INCRBY', counter, 100) -- mutant: tokens drawn twice
  return type(last) == 'table' and last or last - 99
end
