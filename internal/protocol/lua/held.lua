-- Who has a lock in Spring's format, and whether the value has the mark: others wait, or did. A part of scripts that have defined key.
local held = redis.call('GET', key)
local awaited = held and string.sub(held, -1) == '+'
if awaited then
  held = string.sub(held, 1, -2)
end
