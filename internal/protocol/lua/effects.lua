-- Before version 7 a server may replicate scripts as a whole. It then refuses writes after commands whose replies may differ on
-- a replica: the time, the rest of a lease, the number of subscribers. So this comes first in such scripts: it makes the server
-- replicate their commands.

--# effects
if not redis.REDIS_VERSION_NUM and redis.replicate_commands then -- from version 3.2 on
  redis.replicate_commands()
end
