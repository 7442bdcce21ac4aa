-- Makes the hold of the first ticket the owner of a plain lock, and replies. It is in the order that serve.lua has: a ticket for which
-- no process listens any more is neither removed nor told of. When something is in the way nothing has changed but that the ticket may
-- be gone. The script has defined own(name, lease), which tells whether it was not refused, and mark, which stands behind a value in the
-- name of an owner. To make strings is much of what a script takes its time for: so here each is made once.
-- include channel
-- Its lease is no shorter than that of a grant, which is a second long.
local registry, number = string.match(first[1], '^(.*):(%d+)|[1-9]%d%d%d+$')
if registry then
  local to = channel(registry)
  local listening = redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', to)[2]
  if listening and listening > 0 and redis.pcall('ZREM', queue, first[1]) == 1 and own(registry .. ':' .. number .. mark, '1000') then
    local publisher = sharded and 'SPUBLISH' or 'PUBLISH'
    local told = redis.pcall(publisher, to, 'g ' .. number .. ' 1000@' .. due .. ' ' .. key)
    if type(told) == 'number' then
      registry, number = string.match(first[2] or '', '^(.*):(%d+)|%d+$')
      if registry then
        redis.pcall(publisher, channel(registry), 'n ' .. number .. ' 1000 ' .. key)
      end
      return 2
    end
    own(value .. mark, '1000') -- it is forbidden
  end
end
