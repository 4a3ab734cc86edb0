-- Puts a staged restore in place. Everything is looked at before the first
-- write; the first write needs no memory, after which the server refuses no
-- command of this script for want of it.
-- KEYS: record, index, registry, operator states, assignment.
-- ARGV: staging prefix, restore id, mark, expected epoch, new epoch, scope,
--   number of staged keys, number of names in the staged index, in the set of
--   absent and of expired ones, number of unchanged keys, which of registry, states, assignment are staged ("111"),
--   incarnation, attempt, checkpoint; then 6 words for each position.
local call = redis.call
local rec, idx, reg, ops, asg = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local P, id, mark, epoch, newepoch, scope = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local nkeys, nnames, nfixed = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[11])
local nabsent, nlapsed = tonumber(ARGV[9]), tonumber(ARGV[10])
local staged, incarnation, attempt, checkpoint = ARGV[12], ARGV[13], ARGV[14], ARGV[15]
local SLICE, POS, WORDS = 1000, 16, 6
local all = scope == 'all'

if redis.replicate_commands then redis.replicate_commands() end -- before 7.0

-- 1. Are we still the restore that may do this?
local now = call('HGET', rec, 'restore')
if not now then
  if call('HGET', rec, 'flipped') == id then return {'already'} end
  return {'unmarked'}
end
if now ~= mark then return {'marked', now} end
local live = call('HGET', rec, 'epoch') or '0'
if live ~= epoch then return {'fenced', live} end

-- A refusal found inside a loop; the first one counts.
local refusal
local function refuse(...) if not refusal then refusal = {...} end end

local function may(cmd, ...)
  if redis.acl_check_cmd and not redis.acl_check_cmd(cmd, ...) then
    local names = {...}
    refuse('denied', cmd, names[2] and cmd == 'RENAME' and names[2] or names[1])
  end
end

local own = {[rec] = true, [idx] = true, [reg] = true, [ops] = true, [asg] = true}
local stageroot = rec .. ':stage:'
local function bookkeeping(name)
  return own[name] or string.sub(name, 1, #stageroot) == stageroot
end

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

-- Calls fn with the staged keys and, for each, letter, expiry and name.
local function eachstaged(fn)
  for from = 0, nkeys - 1, SLICE do
    local entries = call('LRANGE', P .. 'map', from, from + SLICE - 1)
    local keys, kinds, expiries, names = {}, {}, {}, {}
    for i = 1, #entries do
      local kind, expiry, at = string.match(entries[i], '^(%l)(%d+):()')
      keys[i] = P .. 'k' .. string.format('%.0f', from + i - 1)
      kinds[i], expiries[i], names[i] = kind, expiry, string.sub(entries[i], at)
    end
    fn(keys, kinds, expiries, names)
    if refusal then return end
  end
end

-- The names of a slice of the live index that the checkpoint doesn't have.
local function later(names)
  local known = call('SMISMEMBER', P .. 'index', unpack(names))
  local out = {}
  for i = 1, #names do
    if known[i] == 0 and not bookkeeping(names[i]) then out[#out + 1] = names[i] end
  end
  return out
end

-- 2. Is everything staged, and may we put it in place?
local function gone(name) refuse('gone', name) end
if call('LLEN', P .. 'map') ~= nkeys then gone(P .. 'map') end
if call('SCARD', P .. 'index') ~= nnames then gone(P .. 'index') end
if call('SCARD', P .. 'absent') ~= nabsent then gone(P .. 'absent') end
if call('SCARD', P .. 'expired') ~= nlapsed then gone(P .. 'expired') end
if string.sub(staged, 3, 3) == '1' and call('EXISTS', P .. 'assign') == 0 then gone(asg) end
if not all then
  if string.sub(staged, 2, 2) == '1' and call('EXISTS', P .. 'ops') == 0 then gone(ops) end
  if call('LLEN', P .. 'unchanged') ~= nfixed then gone(P .. 'unchanged') end
end
if not all then
  -- These two are edited, not replaced: they must be what we take them for.
  for _, want in ipairs({{idx, 'set'}, {reg, 'hash'}}) do
    local t = call('TYPE', want[1]).ok
    if t ~= 'none' and t ~= want[2] then refuse('type', want[1], t, want[2]) end
  end
  may('SADD', idx, 'v')
  may('SREM', idx, 'v')
  may('HSET', reg, 'f', 'v')
  may('HDEL', reg, 'f')
end
may('HSET', rec, 'f', 'v')
may('HDEL', rec, 'f')
for _, name in ipairs({ops, asg, all and idx or ops, all and reg or ops}) do
  may('RENAME', P .. 'k0', name)
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
    if not unchanged(kind, name, P .. 'x' .. string.format('%.0f', from + i - 1)) then refuse('changed', name) end
  end
end)
if refusal then return refusal end

eachstaged(function(keys, kinds, expiries, names)
  if call('EXISTS', unpack(keys)) ~= #keys then
    for i = 1, #keys do if call('EXISTS', keys[i]) == 0 then gone(names[i]) end end
  end
  local there = call('EXISTS', unpack(names)) -- also needs the right to the names
  for i = 1, #keys do
    if kinds[i] ~= 'p' then
      may('RENAME', keys[i], names[i])
      may('UNLINK', names[i])
      if expiries[i] ~= '0' then may('PEXPIREAT', names[i], expiries[i]) end
      if not all and there > 0 and not fixed[names[i]] and call('EXISTS', names[i]) == 1 then
        refuse('changed', names[i])
      end
    end
  end
end)
if refusal then return refusal end

for _, set in ipairs({'absent', 'expired'}) do
  eachname(P .. set, function(names)
    local there = call('EXISTS', unpack(names)) > 0
    for _, name in ipairs(names) do
      may('UNLINK', name)
      if not all and there and not fixed[name] and call('EXISTS', name) == 1 then refuse('changed', name) end
    end
  end)
end
if all then
  eachname(idx, function(names)
    for _, name in ipairs(later(names)) do may('UNLINK', name) end
  end)
end
for i = POS, #ARGV, WORDS do
  local stream, group, last, read, pending, frontier = unpack(ARGV, i, i + WORDS - 1)
  local t = call('TYPE', stream).ok
  if t ~= 'none' and t ~= 'stream' then refuse('type', stream, t, 'stream') end
  may('XINFO', 'GROUPS', stream)
  may('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
  may('XGROUP', 'SETID', stream, group, '0')
  may('XPENDING', stream, group, '-', '+', '1')
  may('XACK', stream, group, '0-1')
  may('XCLAIM', stream, group, 'c', '0', '0-1', 'FORCE', 'JUSTID')
  if frontier ~= '' then may('UNLINK', frontier) end
end
if refusal then return refusal end

-- 3. The writes. From here on nothing may fail.
call('HDEL', rec, 'restore')
local t = call('TIME')
local ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local put, expired, removed = 0, 0, 0

if all then
  eachname(idx, function(names)
    local out = later(names)
    if #out > 0 then removed = removed + call('UNLINK', unpack(out)) end
  end)
else
  local kept = {}
  eachstaged(function(_, _, _, names)
    for i = 1, #names do kept[names[i]] = true end
  end)
  local names = {}
  for name in pairs(fixed) do names[#names + 1] = name end
  for from = 1, #names, SLICE do
    local part, drop = {}, {}
    for i = from, math.min(from + SLICE - 1, #names) do
      part[#part + 1] = names[i]
      if not kept[names[i]] then drop[#drop + 1] = names[i] end
    end
    if #drop > 0 then removed = removed + call('UNLINK', unpack(drop)) end
    call('SREM', idx, unpack(part))
    call('HDEL', reg, unpack(part))
  end
end

eachname(P .. 'absent', function(names) removed = removed + call('UNLINK', unpack(names)) end)
eachname(P .. 'expired', function(names) call('UNLINK', unpack(names)) end)

eachstaged(function(keys, kinds, expiries, names)
  local old = {}
  for i = 1, #keys do if kinds[i] ~= 'p' then old[#old + 1] = names[i] end end
  if #old > 0 then call('UNLINK', unpack(old)) end
  for i = 1, #keys do
    if kinds[i] == 'p' then
      -- read below
    elseif expiries[i] ~= '0' and tonumber(expiries[i]) <= ms then
      call('UNLINK', keys[i])
      expired = expired + 1
    else
      call('RENAME', keys[i], names[i])
      if expiries[i] ~= '0' then call('PEXPIREAT', names[i], expiries[i]) end
      if kinds[i] == 's' then put = put + 1 end
    end
  end
end)

local function replace(from, to)
  if call('EXISTS', from) == 1 then call('RENAME', from, to) else call('UNLINK', to) end
end
if all then
  replace(P .. 'index', idx)
  if string.sub(staged, 1, 1) ~= '1' then call('UNLINK', reg) end
  if string.sub(staged, 2, 2) ~= '1' then call('UNLINK', ops) end
else
  eachname(P .. 'index', function(names) call('SADD', idx, unpack(names)) end)
  local cursor = '0'
  repeat
    local r = call('HSCAN', P .. 'schemas', cursor, 'COUNT', SLICE)
    cursor = r[1]
    for i = 1, #r[2], 2 do call('HSET', reg, r[2][i], r[2][i + 1]) end
  until cursor == '0'
  replace(P .. 'ops', ops)
end
replace(P .. 'assign', asg)

-- Ids of stream entries are two numbers of up to 20 digits: compared as text.
local function before(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if am ~= bm then
    if #am ~= #bm then return #am < #bm end
    return am < bm
  end
  if #as ~= #bs then return #as < #bs end
  return as < bs
end

-- The staged pending entries one after the other; nil at the end.
local function pendings(list)
  local from, part, i = 0, {}, 0
  return function()
    if list == '' then return nil end
    i = i + 1
    if i > #part then
      part, i = call('LRANGE', list, from, from + SLICE - 1), 1
      from = from + SLICE
      if #part == 0 then return nil end
    end
    local entry, at, n, tail = string.match(part[i], '^(%d+%-%d+) (%d+) (%d+) ()')
    return {id = entry, at = at, n = n, consumer = string.sub(part[i], tail)}
  end
end

local function groupexists(stream, group)
  if call('EXISTS', stream) == 0 then return false end
  for _, g in ipairs(call('XINFO', 'GROUPS', stream)) do
    for i = 1, #g, 2 do if g[i] == 'name' and g[i + 1] == group then return true end end
  end
  return false
end

-- Acknowledges what is pending and not in the staged list: both are in the
-- order of ids.
local function acknowledge(stream, group, list)
  local nextone = pendings(list)
  local want, start = nextone(), '-'
  while true do
    local have = call('XPENDING', stream, group, start, '+', SLICE)
    if #have == 0 then return end
    local drop = {}
    for _, h in ipairs(have) do
      while want and before(want.id, h[1]) do want = nextone() end
      if not want or want.id ~= h[1] then drop[#drop + 1] = h[1] end
    end
    if #drop > 0 then call('XACK', stream, group, unpack(drop)) end
    start = '(' .. have[#have][1]
  end
end

for i = POS, #ARGV, WORDS do
  local stream, group, last, read, pending, frontier = unpack(ARGV, i, i + WORDS - 1)
  local there = groupexists(stream, group)
  local id0 = last
  -- A group that the checkpoint doesn't have reads from the beginning, as a
  -- new one would.
  if last == '' then id0 = '0-0' end
  local tail = {}
  if read ~= '' then tail = {'ENTRIESREAD', read} end
  if there then
    call('XGROUP', 'SETID', stream, group, id0, unpack(tail))
    acknowledge(stream, group, pending)
  elseif last ~= '' then
    local words = {'MKSTREAM', unpack(tail)}
    call('XGROUP', 'CREATE', stream, group, id0, unpack(words))
  end
  for p in pendings(pending) do
    call('XCLAIM', stream, group, p.consumer, '0', p.id, 'TIME', p.at, 'RETRYCOUNT', p.n, 'FORCE', 'JUSTID')
  end
  if frontier ~= '' then call('UNLINK', frontier) end
end

-- 4. What was staged and isn't in place, and the record.
for i = POS, #ARGV, WORDS do
  if ARGV[i + 4] ~= '' then call('UNLINK', ARGV[i + 4]) end
end
for from = 0, nfixed - 1 do call('UNLINK', P .. 'x' .. string.format('%.0f', from)) end
call('UNLINK', P .. 'map', P .. 'index', P .. 'absent', P .. 'expired', P .. 'assign', P .. 'ops', P .. 'schemas', P .. 'unchanged', P .. 'extras', P .. 'next')
local at = tonumber(call('HGET', rec, 'checkpoint') or '0')
if at < tonumber(checkpoint) then
  call('HSET', rec, 'checkpoint', checkpoint)
  call('HDEL', rec, 'checkpointAt')
end
call('HSET', rec, 'incarnation', incarnation, 'epoch', newepoch, 'flipped', id)
if attempt ~= '0' then call('HSET', rec, 'attempt', attempt) end
return {'ok', put, expired, removed}
