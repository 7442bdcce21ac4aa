-- A step of a pass through the keys of the database, with names of any length. It changes nothing.
--
-- ARGV[1]  the cursor
-- ARGV[2]  the pattern
-- ARGV[3]  how many keys to look at
-- ARGV[4]  and so on: what names begin with, one of these; all names, if there is none
--
-- Replies the next cursor, the names that are found, the beginnings of names that are too long, and the server's time before that
-- in microseconds, as text: a TIME that follows shows how long the step took. It is 0 without permission for TIME.
local MOST, HEAD = 8192, 100

local time = redis.pcall('TIME')
local reply = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local names, long = {}, {}

local function wanted(name)
  for i = 4, #ARGV do
    if string.sub(name, 1, #ARGV[i]) == ARGV[i] then
      return true
    end
  end
  return #ARGV < 4
end

for _, name in ipairs(reply[2]) do
  if not wanted(name) then
    -- of no prefix that is looked for
  elseif #name <= MOST then
    names[#names + 1] = name
  else
    long[#long + 1] = string.sub(name, 1, HEAD) .. ' (too long: ' .. #name .. ' bytes)'
  end
end
return {reply[1], names, long, time.err and '0' or time[1] .. string.format('%06d', time[2])}
