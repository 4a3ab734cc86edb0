-- Begins a term. KEYS: lease. ARGV: id, host, pid, address, store, ttl (ms),
-- floor, then ids of earlier processes with the same store.
if redis.replicate_commands then redis.replicate_commands() end -- before 7.0
local lease, id = KEYS[1], ARGV[1]
local l = redis.call('HMGET', lease, 'token', 'holder', 'host', 'pid', 'address', 'store', 'since', 'until', 'ttl')
for i = 1, 9 do l[i] = l[i] or '' end
local token, ends, ttl = tonumber(l[1] == '' and '0' or l[1]), tonumber(l[8] == '' and '0' or l[8]), tonumber(l[9] == '' and '0' or l[9])
if not token or not ends or not ttl then return {'damaged', l[1], l[8], l[9]} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ours = l[2] == '' or l[2] == id
for i = 8, #ARGV do
  ours = ours or (l[2] == ARGV[i] and l[3] == ARGV[2] and l[6] == ARGV[5] and ARGV[5] ~= '')
end
-- A lease that would last longer than it can was given before the server's
-- clock was put back.
if not ours and ends > now and ends - now <= ttl then return {'held', unpack(l)} end
token = math.max(token, tonumber(ARGV[7])) + 1
-- HDEL first: a server without memory lets a script go on that began with a
-- command that needs none.
redis.call('HDEL', lease, 'holder')
redis.call('HSET', lease, 'token', string.format('%.0f', token), 'holder', id, 'host', ARGV[2], 'pid', ARGV[3],
  'address', ARGV[4], 'store', ARGV[5], 'since', string.format('%.0f', now), 'until', string.format('%.0f', now + ARGV[6]), 'ttl', ARGV[6])
return {'ok', string.format('%.0f', token), id, ARGV[2], ARGV[3], ARGV[4], ARGV[5],
  string.format('%.0f', now), string.format('%.0f', now + ARGV[6])}
