-- On which channel a registry hears of the queues that it waits in. A part of scripts that have included names.lua.
local function channel(registry)
  return prefix .. (sharded and '-channel@{' .. (tag or key) .. '}' or '-channel@') .. registry
end
