-- Marks the cut in the record, before any writer that it has held goes on, and
-- gives the lease its full time again, which nobody could renew meanwhile;
-- fence.lua comes before it.
-- KEYS: record, lease. ARGV: holder, token, attempt.
if redis.replicate_commands then redis.replicate_commands() end -- before 7.0
local no = fenced(KEYS[2], ARGV[1], ARGV[2])
if no then return no end
redis.call('HSET', KEYS[1], 'cut', ARGV[3])
local ttl = ARGV[2] ~= '0' and tonumber(redis.call('HGET', KEYS[2], 'ttl') or '0') or 0
if ttl > 0 then
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[2], 'until', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ttl))
end
return {'ok'}
