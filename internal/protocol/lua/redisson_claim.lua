-- What redisson_obtain.lua does, in a part that another script has, too, for what it does not decide. That one has defined what it is
-- given.
-- include redisson_draw
-- include fence
if redis.call('HEXISTS', key, 'mode') == 1 then
  return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
local function own(other, lease)
  local refused = other == field and fence()
  if refused then
    return refused
  end
  redis.call('DEL', key)
  redis.call('HSET', key, other, '1')
  local done = redis.pcall('PEXPIRE', key, lease)
  if type(done) == 'table' then -- refused, by the user's permissions: a hash without a lease would stay for ever
    redis.call('DEL', key)
    return done
  end
end
local taken, holder, mine = false, nil, redis.call('HEXISTS', key, field) == 1
if not mine and redis.call('EXISTS', key) == 1 then
  local registry, number = string.match(field, '^(.*:)(%d+)$')
  for _, other in ipairs(redis.call('HKEYS', key)) do
    local n = nil
    if string.sub(other, 1, #registry) == registry then
      n = tonumber(string.sub(other, #registry + 1))
    end
    holder = other
    if not n or n > tonumber(number) then -- mutant: late grant wins, Redisson
      if how == '' then
        return redis.call('PTTL', key)
      elseif n then
        return {'refused'}
      end
      taken = true
      break
    end
  end
end
if how == '' then
  return own(field, lease) or granted()
end
-- include names
local member = field .. '|' .. zeros .. lease
if mine or holder and not taken then
  redis.pcall('ZREM', queue, member)
  if older ~= '' then
    redis.pcall('ZREM', queue, older)
  end
  if mine then
    return {'owner', redis.call('PTTL', key)}
  end
  return own(field, lease) or granted()
end
local function free() return not taken end
local make = own
local function own(other, lease)
  local refused = make(other, lease)
  if refused then
    error(refused)
  end
  taken = true
end
-- include ask
-- Whether the holder is Redisson's does not show.
local ok, reply = pcall(ask, member, field, lease, '', how, place, older, taken and redis.call('PTTL', key) or -2, false)
if not ok then
  return unfenced or {'error', type(reply) == 'table' and reply.err or reply}
end
return reply or granted()
