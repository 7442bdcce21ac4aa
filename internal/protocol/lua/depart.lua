-- For the release of a read-write lock: has those come in who may, now that the hold is gone. The script has defined
--   value, ticket, prefix, sharded   what it was given
--   turn                             somebody may come in who could not before
--   reply                            what it replies, which changes
--   message, announced               what is published, and whether it has been
--   age                              see pass.lua
--   mode                             that of the lock now, if the hold was there
if prefix ~= '' and (turn or ticket ~= '') then
  -- include names
  if ticket == '+' or redis.pcall('EXISTS', queue) ~= 0 then
    local entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
    if not mine then
      mode = redis.call('HGET', key, 'mode')
    end
    -- include grant
    -- include admit
    -- include publish
    local function announce()
      local first = not announced
      announced = true
      return first and publish() or 0
    end
    -- include pass
    if ticket ~= '' and ticket ~= '+' then
      -- include leave
      pcall(leave, value, ticket)
      entries = redis.pcall('ZRANGE', queue, '0', '2', 'WITHSCORES')
      turn = turn or mode == 'read' -- it may have kept readers out
    end
    if entries.err then
      reply = entries.err
    elseif turn then
      local ok, served, others = pcall(pass, entries, ticket == '+')
      reply = not ok and (type(served) == 'table' and served.err or served) or (served or others) and 2 or 1
    elseif entries[5] then
      reply = 2
    end
  end
end
