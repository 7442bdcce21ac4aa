-- What spring_obtain.lua does, in a part that other scripts have, too, for what they do not decide. Those have defined what it is
-- given.
-- include draw
-- include fence
-- include held
local taken = false
if held and held ~= value then
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = nil
  if string.sub(held, 1, #registry) == registry then
    other = tonumber(string.sub(held, #registry + 1))
  end
  taken = not other or other > tonumber(number) -- mutant: late grant wins
  if taken and how == '' then
    return redis.call('PTTL', key)
  elseif taken and other then
    return {'refused'}
  end
end
if how == '' then
  local refused = fence()
  if refused then
    return refused
  end
  redis.call('SET', key, awaited and value .. '+' or value, 'PX', lease)
  return granted()
end
-- include names
local member = value .. '|' .. zeros .. lease
if held and not taken then
  redis.pcall('ZREM', queue, member)
  if older ~= '' then
    redis.pcall('ZREM', queue, older)
  end
  if held == value then
    return {'owner', redis.call('PTTL', key)}
  end
  local refused = fence()
  if refused then
    return refused
  end
  redis.call('SET', key, value .. '+', 'PX', lease)
  return granted()
end
if taken and (how == 'queue' or type(redis.pcall('ZSCORE', queue, member)) == 'string') then -- a look without a ticket is late
  -- include mark
end
local function free() return not taken end
local function own(other, milliseconds)
  local refused = other == value and fence()
  if refused then
    error(refused)
  end
  redis.call('SET', key, other .. '+', 'PX', milliseconds)
  taken = true
end
-- include ask
local foreign = held and not string.find(held, ':%d+$')
local ok, reply = pcall(ask, member, value, lease, '', how, place, older, held and redis.call('PTTL', key) or -2, foreign)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or granted()
