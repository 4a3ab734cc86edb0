-- Ends a restore. KEYS: record. ARGV: restore id, 'stop' or 'unmark'.
-- 'stop' makes a flip that is still on its way find another mark than its
-- own; the job stays marked. 'unmark' takes the mark away.
local rec, id = KEYS[1], ARGV[1]
local flipped = redis.call('HGET', rec, 'flipped') == id
local mark = redis.call('HGET', rec, 'restore')
local ours = false
if mark then
  local ok, m = pcall(cjson.decode, mark)
  ours = ok and type(m) == 'table' and m.id == id
end
if ours and ARGV[2] == 'unmark' then
  redis.call('HDEL', rec, 'restore')
elseif ours and not string.find(mark, '"resolving":true}', 1, true) then
  -- HDEL first: a server without memory lets a script go on that began with
  -- a command that needs none.
  redis.call('HDEL', rec, 'restore')
  redis.call('HSET', rec, 'restore', string.sub(mark, 1, -2) .. ',"resolving":true}')
end
return flipped and 1 or 0
