-- Replies the server's time in microseconds since 1970.
--
-- KEYS[1]  a key that the server has, or could have
local time = redis.call('TIME')
return time[1] * 1000000 + time[2]
