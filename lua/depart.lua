-- For the release of a read-write lock: has those come in who may, now that the hold is gone. The script has defined
--   value, ticket, prefix, sharded   what it was given
--   turn                             somebody may come in who could not before
--   announce()                       see pass.lua
-- Replies what a release does whose hold was there.
local function depart()
  local reply = 1
  if prefix ~= '' and (turn or ticket ~= '') then
    -- include names
    local entries = redis.pcall('ZRANGE', queue, 0, 3, 'WITHSCORES')
    if entries.err then
      reply = 3
    elseif #entries > 0 or ticket == '+' then
      -- include pass
      if ticket ~= '' and ticket ~= '+' then
        -- include leave
        pcall(leave, value, ticket)
        entries = redis.pcall('ZRANGE', queue, 0, 3, 'WITHSCORES')
        turn = turn or mode == 'read' -- it may have kept readers out
      end
      if turn then
        local ok, served, others = pcall(pass, entries, ticket == '+')
        reply = not ok and 3 or (served or others) and 2 or 1
      elseif entries[5] then
        reply = 2
      end
    end
  end
  return reply
end
