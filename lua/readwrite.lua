-- What the scripts of read-write locks have in common. They have defined key, and name, as it stands in derived keys.
local function timeout(field, n)
  return name .. ':' .. field .. ':rwlock_timeout:' .. n
end

local mode = redis.call('HGET', key, 'mode') -- read or write, or false when nobody has the lock
