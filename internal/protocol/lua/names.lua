-- Where the queue of a lock is: in the slot of its key. A part of the scripts that know it. An empty prefix: there is none.
local tag = string.find(key, '{', 1, true) and string.match(key, '^[^{]*{([^}]+)}')
local queue = tag and key .. ':waiters' or prefix .. ':{' .. key .. '}:waiters'
