-- Renews or ends a term; fence.lua comes before it.
-- KEYS: lease. ARGV: holder, token, ttl (ms), 0 to end it.
if redis.replicate_commands then redis.replicate_commands() end -- before 7.0
local no = fenced(KEYS[1], ARGV[1], ARGV[2])
if no then return no end
if ARGV[3] == '0' then
  redis.call('HDEL', KEYS[1], 'holder', 'until')
  return {'ok'}
end
local t = redis.call('TIME')
local ends = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[3]
redis.call('HDEL', KEYS[1], 'until') -- first, for a server without memory
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', ends), 'ttl', ARGV[3])
return {'ok'}
