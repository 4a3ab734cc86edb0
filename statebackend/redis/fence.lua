-- fenced tells who leads when it isn't the holder of this token, and nil when
-- it is, or when nobody was ever elected and no token is brought ('0').
local function fenced(lease, holder, token)
  local l = redis.call('HMGET', lease, 'token', 'holder', 'host', 'pid', 'address', 'store', 'since', 'until')
  if not l[1] and token == '0' then return nil end
  if l[1] == token and l[2] == holder then return nil end
  for i = 1, 8 do l[i] = l[i] or '' end
  return {'deposed', unpack(l)}
end
