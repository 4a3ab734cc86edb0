-- Ends a restore; fence.lua comes before it. KEYS: record, lease.
-- ARGV: restore id, 'stop' or 'unmark', holder, token.
-- 'stop' makes a flip that is still on its way find another mark than its
-- own; the job stays marked. 'unmark' takes the mark away.
-- 0: it has not flipped; 1: it has; 2: it has not, and can't any more, and the
-- mark is the leader's to take away.
local rec, id = KEYS[1], ARGV[1]
local flipped = redis.call('HGET', rec, 'flipped') == id
local mark = redis.call('HGET', rec, 'restore')
local ours, token = false, 0
if mark then
  local ok, m = pcall(cjson.decode, mark)
  ours = ok and type(m) == 'table' and m.id == id
  if ours then token = tonumber(m.token or 0) or 0 end
end
local no = fenced(KEYS[2], ARGV[3], ARGV[4])
if no then
  if flipped then return 1 end
  -- no[2] and no[3] are the current token and its holder.
  if ours and no[3] ~= '' and token == tonumber(no[2]) then return no end
  return 2
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
