-- A format for a test: a list with the value of the holder. It has no short ways, so it is slower than others, and as correct.

--# format
local side, taken = '', false

local function holder(value)
  local held = redis.call('LINDEX', key, 0)
  if not held then
    return 'free', false, -2
  elseif held == value then
    return 'mine', false
  end
  local registry, number = string.match(value, '^(.*:)(%d+)$')
  local other = string.sub(held, 1, #registry) == registry and tonumber(string.sub(held, #registry + 1))
  if other and other < tonumber(number) then
    return 'ours', false
  end
  taken = true
  return other and 'later' or 'taken', false
end

local function take(value, lease)
  redis.call('RPUSH', key, value)
  redis.call('LTRIM', key, -1, -1)
  redis.call('PEXPIRE', key, lease)
  taken = true
end

local function free()
  return not taken
end

--# extend
local function extend(_, lease)
  return redis.call('PEXPIRE', key, lease) == 1
end

--# end
local function drop(value, keep)
  local state = holder(value)
  if state == 'mine' and keep ~= '' then
    take(value .. ':atleast', keep)
    return state, false
  end
  return state, state == 'mine' or state == 'ours'
end

local function announce()
  redis.call('DEL', key)
  return channels ~= '' and redis.call('PUBLISH', channels .. key, 'free') or 0
end
