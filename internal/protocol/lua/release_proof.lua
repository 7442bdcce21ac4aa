-- Proves, before the first hold of a format is obtained from a server, that the user may do what ends a hold. It changes nothing.
--
-- KEYS[1]  the lock's key
-- ARGV     two for each thing to prove: run, if executing it changes nothing where there is no such key, else check; then a
--          command, or several with | between them of which one is enough, and arguments. And the key that it is about, empty
--          for the lock's
--
-- Replies how it has proved that: checked, all of it; run, as far as an old server can be asked; held, it could not be asked now,
-- since the lock's key is there. Then two for each thing that is refused: its commands, and key or command.
--
-- From version 7.0 on a server says what it permits, and a command that it refuses may be executed to learn why. An older one is
-- asked by executing a command on the lock's key, if that is not there.

local check, exists, replies = redis.acl_check_cmd, nil, {'checked'}
if not check then
  exists = redis.pcall('EXISTS', KEYS[1])
  replies[1] = exists == 1 and 'held' or 'run'
end

-- Returns what is refused: key or command; else nil.
local function refusal(command, key, args, runs)
  if check then
    local known, permitted = pcall(check, command, key, unpack(args))
    if known and permitted then
      return nil
    elseif not known then -- the server does not have the command, or not by this name
      return 'command'
    end
  elseif not runs or key ~= KEYS[1] or exists ~= 0 then
    return nil
  end
  local result = redis.pcall(command, key, unpack(args))
  local why = type(result) == 'table' and result.err or ''
  if string.find(why, 'access', 1, true) then
    return 'key'
  elseif check or string.find(why, "can't run", 1, true) or string.find(why, 'no permissions to run', 1, true) or
    string.find(why, 'nknown', 1, true) then
    return 'command'
  end
end

if check and not check('EVAL', 'return 0', '0') then -- the server may forget a script
  replies[2], replies[3] = 'EVAL', 'command'
end
for i = 1, #ARGV, 2 do
  local how, commands, rest = string.match(ARGV[i], '^(%S+) (%S+)(.*)$')
  local args, key, refused = {}, ARGV[i + 1] or '', nil -- an empty argument at the end is not sent
  for word in string.gmatch(rest, '%S+') do
    args[#args + 1] = word
  end
  for command in string.gmatch(commands, '[^|]+') do
    refused = refusal(command, key == '' and KEYS[1] or key, args, how == 'run')
    if not refused then
      break
    end
  end
  if refused then
    replies[#replies + 1], replies[#replies + 2] = commands, refused .. ' ' .. key
  end
end
return replies
