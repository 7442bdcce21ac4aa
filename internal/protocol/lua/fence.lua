-- Draws a fencing token for the hold that is about to own the lock, with 99 more for those in its process to which it is handed
-- on. A part of the scripts that obtain. The script has defined counter, the key that keeps the last token drawn, empty when none
-- is wanted, and draw(), which returns the first one, or an error. The draw comes before the lock changes: it may be refused.
local token, unfenced = nil, nil
local function fence()
  local first = counter ~= '' and draw() or nil
  if type(first) ~= 'table' then
    token = first
    return nil
  end
  if string.find(first.err, 'WRONGTYPE') or string.find(first.err, 'not an integer') then
    first = redis.error_reply('ERR ' .. counter .. ' is in the place of the fencing counter, and holds something else')
  end
  unfenced = first
  return first
end

-- The reply when the hold owns the lock.
local function granted()
  return token and {'granted', token} or nil
end
