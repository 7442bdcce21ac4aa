-- Publishes the release of a read-write lock, which may be forbidden; it is released all the same. Returns how many were told.
local function publish()
  local received = 0
  for _, command in ipairs(ARGV[2] == 'SPUBLISH' and {'SPUBLISH', 'PUBLISH'} or {ARGV[2]}) do
    received = command ~= '' and tonumber(redis.pcall(command, ARGV[3], message)) or 0
    if received > 0 and message == '1' then
      redis.pcall(command, ARGV[3], '0')
    end
  end
  return received
end
