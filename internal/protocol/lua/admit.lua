-- What serve.lua needs to know of a read-write lock. Others may read while some do.
local function free(kind)
  return not mode or kind == 'r' and mode == 'read' -- mutant: admitted beside a writer
end

local function own(value, lease, kind)
  local refused = grant(value, lease, kind)
  if refused then
    error(refused)
  end
end
