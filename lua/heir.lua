-- For the release of a plain lock that is contested all the time: makes the hold of the first ticket the owner, when no window is
-- open or due; it takes a good deal less time than pass.lua. When its process is gone, pass.lua goes on with the next one. The
-- script has defined own(value, lease), and served, which that sets.
if over and ticket == '' and #waiting == 6 and redis.REDIS_VERSION_NUM then
  local TICKET = '^(.*):(%d+)|(%d+)$'
  local command = sharded and 'SPUBLISH' or 'PUBLISH'
  local channels = prefix .. (sharded and '-channel@{' .. (tag or key) .. '}' or '-channel@')
  local registry, number, lease = string.match(waiting[5], TICKET)
  local open, wide = -waiting[2], -waiting[4]
  if waiting[1] == 'wide' then
    open, wide = wide, open
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + time[2] / 1000
  if registry and #lease > 3 -- no less than that of a grant
    and now >= open and now - open < 100 and now - wide < 1700 -- no window, and none is due
    and redis.pcall('ZREM', queue, waiting[5]) == 1 then
    local told = pcall(own, registry .. ':' .. number, '1000') and redis.pcall(command, channels .. registry, 'g ' .. number .. ' 1000 ' .. key)
    if type(told) == 'number' and told > 0 then
      if now - waiting[6] / 1000 >= 1000 then -- the next one may have waited for as long, see serve.lua
        local next = redis.pcall('ZRANGE', queue, '2', '2', 'WITHSCORES')
        registry, number = string.match(next[1] or '', TICKET)
        if registry and now - next[2] / 1000 >= 1000 then
          redis.pcall(command, channels .. registry, 'n ' .. number .. ' 1000 ' .. key)
        end
      end
      return mine and 2 or 0
    end
    served = false
    waiting = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
  end
end
