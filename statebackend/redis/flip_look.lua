-- Puts a staged restore in place; owns.lua and fence.lua come before it. Everything is looked at before the first
-- write; the first write needs no memory, after which the server refuses no
-- command of this script for want of it.
-- KEYS: record, index, registry, operator states, assignment, lease.
-- ARGV: staging prefix, restore id, mark, expected epoch, new epoch, scope,
--   number of staged keys, of odd entries, of names in the staged index, in the
--   sets of absent and of expired ones, of unchanged keys, which of registry, states, assignment are staged ("111"),
--   incarnation, attempt, checkpoint, holder and token of the lease; then 6 words for each position.
local call = redis.call
local rec, idx, reg, ops, asg = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local P, id, mark, epoch, newepoch, scope = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local nkeys, nodd, nnames = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local nabsent, nlapsed, nfixed = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local staged, incarnation, attempt, checkpoint = ARGV[13], ARGV[14], ARGV[15], ARGV[16]
local SLICE, POS, WORDS = 1000, 19, 6
local all = scope == 'all'

if redis.replicate_commands then redis.replicate_commands() end -- before 7.0

-- 1. Are we still the restore that may do this?
local now = call('HGET', rec, 'restore')
if not now then
  if call('HGET', rec, 'flipped') == id then return {'already'} end
  return {'unmarked'}
end
local no = fenced(KEYS[6], ARGV[17], ARGV[18])
if no then return no end
if now ~= mark then return {'marked', now} end
local live = call('HGET', rec, 'epoch') or '0'
if live ~= epoch then return {'fenced', live} end

-- A refusal found inside a loop; the first one counts.
local refusal
local function refuse(...) if not refusal then refusal = {...} end end

local function may(cmd, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(cmd, ...) then
    local names = {...}
    if cmd == 'XGROUP' or cmd == 'XINFO' then
      refuse('denied', cmd .. '|' .. names[1], names[2])
    else
      refuse('denied', cmd, names[2] and cmd == 'RENAME' and names[2] or names[1])
    end
  end
end

-- A user with a right to names that no narrower rule would allow has it to
-- every name: then the names aren't looked at one by one, which would take
-- about as long as moving them.
local function everywhere()
  if not redis.acl_check_cmd then return false end
  for _, name in ipairs({id, '\0' .. id .. '\255', rec .. id .. 'z', '~' .. id .. '*Z'}) do
    if not (redis.acl_check_cmd('UNLINK', name) and redis.acl_check_cmd('RENAME', name, name)
      and redis.acl_check_cmd('PEXPIREAT', name, '1') and redis.acl_check_cmd('EXISTS', name)) then return false end
  end
  return true
end
local trusted = everywhere()

-- Calls fn with a table of names for each slice of a set.
local function eachname(set, fn)
  local cursor = '0'
  repeat
    local r = call('SSCAN', set, cursor, 'COUNT', SLICE)
    cursor = r[1]
    local names = r[2]
    for from = 1, #names, SLICE do
      local part = {}
      for i = from, math.min(from + SLICE - 1, #names) do part[#part + 1] = names[i] end
      fn(part)
    end
  until cursor == '0' or refusal
end

-- Staged keys are named by thousands and the rest: a slice has one base.
local REST = {}
for i = 1, SLICE do REST[i] = tostring(i - 1) end
local function base(letter, from) return P .. letter .. (from / SLICE) .. '.' end

-- The odd entries one after the other; nil at the end.
local function odds()
  local from, part, i = 0, {}, 0
  return function()
    i = i + 1
    if i > #part then
      part, i = call('LRANGE', P .. 'odd', from, from + SLICE - 1), 1
      from = from + SLICE
      if #part == 0 then return nil end
    end
    local n, kind, expiry = string.match(part[i], '^(%d+)(%l)(%d+)$')
    return {n = tonumber(n), kind = kind, expiry = expiry}
  end
end

-- Calls fn for each slice with the live names, the base of the staged keys
-- (base .. REST[i] belongs to names[i]) and the odd entries by i.
local function eachstaged(fn)
  local nextone = odds()
  local one = nextone()
  for from = 0, nkeys - 1, SLICE do
    local odd = {}
    while one and one.n < from + SLICE do
      odd[one.n - from + 1] = one
      one = nextone()
    end
    fn(call('LRANGE', P .. 'map', from, from + SLICE - 1), base('k', from), odd)
    if refusal then return end
  end
end

-- The names of a slice of the live index that the checkpoint doesn't have, and
-- that are the job's: others leave the index, and their keys stay.
local function later(names)
  local known = call('SMISMEMBER', P .. 'index', unpack(names))
  local out = {}
  for i = 1, #names do
    if known[i] == 0 and owns(names[i]) then out[#out + 1] = names[i] end
  end
  return out
end

-- 2. Is everything staged, and may we put it in place?
local function gone(name) refuse('gone', name) end
if call('LLEN', P .. 'map') ~= nkeys then gone(P .. 'map') end
if call('LLEN', P .. 'odd') ~= nodd then gone(P .. 'odd') end
if call('SCARD', P .. 'index') ~= nnames then gone(P .. 'index') end
if call('SCARD', P .. 'absent') ~= nabsent then gone(P .. 'absent') end
if call('SCARD', P .. 'expired') ~= nlapsed then gone(P .. 'expired') end
if string.sub(staged, 3, 3) == '1' and call('EXISTS', P .. 'assign') == 0 then gone(asg) end
if not all then
  if string.sub(staged, 2, 2) == '1' and call('EXISTS', P .. 'ops') == 0 then gone(ops) end
  if call('LLEN', P .. 'unchanged') ~= nfixed then gone(P .. 'unchanged') end
end
local function typed(key, want)
  local t = call('TYPE', key).ok
  if t ~= 'none' and t ~= want then refuse('type', key, t, want) end
end
typed(idx, 'set')
if not all then
  typed(reg, 'hash') -- it is edited, not replaced
  may('SADD', idx, 'v')
  may('SREM', idx, 'v')
  may('HSET', reg, 'f', 'v')
  may('HDEL', reg, 'f')
end
may('HSET', rec, 'f', 'v')
may('HDEL', rec, 'f')
for _, name in ipairs({ops, asg, all and idx or ops, all and reg or ops}) do
  may('RENAME', P .. 'k0.0', name)
  may('UNLINK', name)
end
may('UNLINK', P .. 'map')
if refusal then return refusal end

local fixed = {} -- ScopeOperator: names that were there when the plan was made
local function slices(n, fn)
  for from = 0, n - 1, SLICE do fn(from, math.min(from + SLICE, n) - 1) end
end

-- same tells whether live key a holds what its copy b holds.
local same = {}
same.string = function(a, b)
  local n, page = call('STRLEN', b), 1048576
  if call('STRLEN', a) ~= n then return false end
  for from = 0, n - 1, page do
    if call('GETRANGE', a, from, from + page - 1) ~= call('GETRANGE', b, from, from + page - 1) then return false end
  end
  return true
end
same.list = function(a, b)
  local n = call('LLEN', b)
  if call('LLEN', a) ~= n then return false end
  local equal = true
  slices(n, function(from, to)
    if not equal then return end
    local x, y = call('LRANGE', a, from, to), call('LRANGE', b, from, to)
    for i = 1, #y do if x[i] ~= y[i] then equal = false end end
  end)
  return equal
end
local function scanned(a, b, count, scan, width, get, equal)
  if call(count, a) ~= call(count, b) then return false end
  local cursor = '0'
  repeat
    local r = call(scan, b, cursor, 'COUNT', SLICE)
    cursor = r[1]
    local items = r[2]
    for from = 1, #items, SLICE * width do
      local fields = {}
      for i = from, math.min(from + SLICE * width, #items + 1) - 1, width do fields[#fields + 1] = items[i] end
      local x = call(get, a, unpack(fields))
      local y = call(get, b, unpack(fields))
      for i = 1, #fields do if not x[i] or x[i] ~= y[i] then return false end end
    end
  until cursor == '0'
  return true
end
same.hash = function(a, b) return scanned(a, b, 'HLEN', 'HSCAN', 2, 'HMGET') end
same.set = function(a, b) return scanned(a, b, 'SCARD', 'SSCAN', 1, 'SMISMEMBER') end
same.zset = function(a, b) return scanned(a, b, 'ZCARD', 'ZSCAN', 2, 'ZMSCORE') end

local function unchanged(kind, a, b)
  if kind == 'missing' then return call('EXISTS', a) == 0 end
  local t = call('TYPE', a).ok
  if t == 'none' or t ~= call('TYPE', b).ok then return false end
  if same[t] then return same[t](a, b) end
  return call('DUMP', a) == call('DUMP', b)
end

slices(nfixed, function(from, to)
  if refusal then return end
  local entries = call('LRANGE', P .. 'unchanged', from, to)
  for i = 1, #entries do
    local kind, at = string.match(entries[i], '^(%l+):()')
    local name = string.sub(entries[i], at)
    fixed[name] = true
    may('UNLINK', name)
    if not unchanged(kind, name, base('x', from) .. REST[i]) then refuse('changed', name) end
  end
end)
if refusal then return refusal end

slices(nkeys, function(from, to)
  if refusal then return end
  local keys, stem = {}, base('k', from)
  for i = 1, to - from + 1 do keys[i] = stem .. REST[i] end
  if call('EXISTS', unpack(keys)) == #keys then return end
  local names = call('LRANGE', P .. 'map', from, to)
  for i = 1, #keys do
    if call('EXISTS', keys[i]) == 0 then gone(names[i]) end
  end
end)
if refusal then return refusal end

if not (all and trusted) then
  eachstaged(function(names, stem, odd)
    local real = {} -- pending entries lie under no live name
    for i = 1, #names do
      if not (odd[i] and odd[i].kind == 'p') then real[#real + 1] = names[i] end
    end
    local there = 0
    if #real > 0 then there = call('EXISTS', unpack(real)) end -- also needs the right to the names
    for i = 1, #names do
      local kind, expiry = 's', '0'
      if odd[i] then kind, expiry = odd[i].kind, odd[i].expiry end
      if kind ~= 'p' then
        may('RENAME', stem .. REST[i], names[i])
        may('UNLINK', names[i])
        if expiry ~= '0' then may('PEXPIREAT', names[i], expiry) end
        if not all and there > 0 and not fixed[names[i]] and call('EXISTS', names[i]) == 1 then
          refuse('changed', names[i])
        end
      end
    end
  end)
end
if refusal then return refusal end

-- isoperator tells operator state by its name, as statebackend.Classify does.
local under = string.sub(idx, 1, -#'stateKeys' - 1) .. 'cg:'
local kindsof = {'state:', 'windowDue:', 'opstate:'}
local function isoperator(name)
  if string.sub(name, 1, #under) ~= under or not string.find(name, ':opstate:', #under, true) then return false end
  local rest, at = string.sub(name, #under + 1), 1
  while true do
    local i, j = string.find(rest, ':p:', at, true)
    if not i then return false end
    at = i + 1
    local digits, tail = string.match(rest, '^(%d+):()', j + 1)
    local number = digits and (digits == '0' or string.sub(digits, 1, 1) ~= '0')
      and #digits <= 10 and tonumber(digits) <= 2147483647
    for _, kind in ipairs(number and kindsof or {}) do
      if string.sub(rest, tail, tail + #kind - 1) == kind then
        return kind == 'opstate:' and string.find(string.sub(rest, 1, i - 1), ':topic:', 1, true) ~= nil
      end
    end
  end
end

if not all then
  eachname(idx, function(names)
    for _, name in ipairs(names) do
      if not fixed[name] and isoperator(name) then refuse('changed', name) end
    end
  end)
end
for _, set in ipairs({'absent', 'expired'}) do
  eachname(P .. set, function(names)
    local there = call('EXISTS', unpack(names)) > 0
    for _, name in ipairs(names) do
      may('UNLINK', name)
      if not all and there and not fixed[name] and call('EXISTS', name) == 1 then refuse('changed', name) end
    end
  end)
end
if all and not trusted then
  eachname(idx, function(names)
    local out = later(names)
    if #out > 0 then call('EXISTS', unpack(out)) end -- before 7.0 this tells the right to the names
    for _, name in ipairs(out) do may('UNLINK', name) end
  end)
end
for i = POS, #ARGV, WORDS do
  local stream, group, last, read, pending, frontier = unpack(ARGV, i, i + WORDS - 1)
  typed(stream, 'stream')
  may('XINFO', 'GROUPS', stream)
  may('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
  may('XGROUP', 'SETID', stream, group, '0')
  may('XPENDING', stream, group, '-', '+', '1')
  may('XACK', stream, group, '0-1')
  may('XCLAIM', stream, group, 'c', '0', '0-1', 'FORCE', 'JUSTID')
  if frontier ~= '' then may('UNLINK', frontier) end
end
if refusal then return refusal end

-- How many names the live index has beside the staged ones, where the server
-- can count them by itself (7.0): mostly none, and then nobody lists them.
local surplus
if all and redis.acl_check_cmd and redis.acl_check_cmd('SINTERCARD', '2', idx, P .. 'index') then
  surplus = call('SCARD', idx) - call('SINTERCARD', 2, idx, P .. 'index')
end

-- Whether the database holds nothing but what is staged and the job's
-- bookkeeping, as after a loss: then nothing is in the way of the staged keys.
local alone = all and trusted and redis.acl_check_cmd('DBSIZE') and call('DBSIZE') == nkeys
  + call('EXISTS', rec, idx, reg, ops, asg, P .. 'map', P .. 'odd', P .. 'index', P .. 'absent', P .. 'expired', P .. 'assign', P .. 'next')

-- What is in the way of a key goes before it is moved, so both commands do the
-- same; the answer of RENAMENX, a number, costs a script less.
local move = 'RENAME'
if trusted and redis.acl_check_cmd('RENAMENX', '\0' .. id .. '\255', '~' .. id .. '*Z') then move = 'RENAMENX' end
