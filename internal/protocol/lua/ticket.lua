-- Puts a ticket at the end of a queue in which others waited a moment ago, and replies, unless the queue is gone, or the server's
-- clock went back: then it changes nothing. Of what is in front it tells only whether there is any ticket; that it replies with a string
-- costs less than an array. A part of scripts.
local time, ticket = redis.pcall('TIME'), value .. '|' .. lease
local place = time[1] and time[1] .. string.sub('00000' .. time[2], -6)
if place and redis.pcall('ZADD', queue, place, ticket) == 1 then
  local last = redis.call('ZRANGE', queue, '-2', '-1')
  if last[2] == ticket then
    return (last[1] == 'open' or last[1] == 'wide') and '0 ' .. place or '1 ' .. place
  end
  redis.call('ZREM', queue, ticket)
end
