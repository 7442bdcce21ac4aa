-- For a call that leaves: removes its ticket, or with * those of its registry up to its number.
local function leave(value, ticket)
  local first = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
  if ticket == '*' then
    local registry, number = string.match(value, '^(.*):(%d+)$')
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, 0, '+inf')) do
      local other, n = string.match(member, '^(.*):(%d+)|%d+[rw]?$')
      if other == registry and tonumber(n) <= tonumber(number) then
        redis.call('ZREM', queue, member)
      end
    end
  else
    redis.call('ZREM', queue, ticket)
  end
  local next = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
  if next and next ~= first then -- it is to watch the key now
    warn(next, 'n', math.max(redis.call('PTTL', key), 0))
  end
end
