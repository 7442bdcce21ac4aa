-- Before version 7 a server may replicate scripts whole, and then refuses what they write once they have asked for what may differ
-- elsewhere: the time, what a lease has left, who is subscribed. So this comes first in scripts that do: their commands are replicated.

--# effects
if not redis.REDIS_VERSION_NUM and redis.replicate_commands then -- from version 3.2 on
  redis.replicate_commands()
end
