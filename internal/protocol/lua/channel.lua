-- On which channel a registry hears of the queues that it waits in: see ownChannel. A part of scripts that have included names.lua.
local function channel(registry)
  if sharded and tag and string.find(prefix, '^[^{]*{[^}]*$') then
    return key .. '-channel@' .. registry
  end
  return prefix .. (sharded and '-channel@{' .. (tag or key) .. '}' or '-channel@') .. registry
end
