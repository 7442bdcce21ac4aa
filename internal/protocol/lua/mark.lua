-- Marks the value of who has a lock in Spring's format, so that its release looks for a queue: see spring_release_alone.lua. That of
-- Java knows no mark, nor do versions whose holds had short numbers. Where it is refused a release does not wake who waits, but
-- tracking does. A part of scripts that have included held.lua.
if not awaited and string.find(held, ':%d%d%d%d%d%d%d%d%d%d%d%d%d%d+$') then
  redis.pcall('SET', key, held .. '+', 'XX', 'KEEPTTL')
end
