-- 3. The writes. From here on nothing may fail.
call('HDEL', rec, 'restore')
local t = call('TIME')
local ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local put, expired, removed = 0, 0, 0

if all then
  if surplus ~= 0 then
    eachname(idx, function(names)
      local out = later(names)
      if #out > 0 then removed = removed + call('UNLINK', unpack(out)) end
    end)
  end
else
  local kept = {}
  eachstaged(function(names)
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

eachstaged(function(names, stem, odd)
  if next(odd) then
    for i = 1, #names do
      local o = odd[i]
      local key = stem .. REST[i]
      if not o then
        call('UNLINK', names[i])
        call('RENAME', key, names[i])
        put = put + 1
      elseif o.kind == 'p' then
        -- read below
      else
        call('UNLINK', names[i])
        if o.expiry ~= '0' and tonumber(o.expiry) <= ms then
          call('UNLINK', key)
          if o.kind == 's' then expired = expired + 1 end
        else
          call('RENAME', key, names[i])
          if o.expiry ~= '0' then call('PEXPIREAT', names[i], o.expiry) end
          if o.kind == 's' then put = put + 1 end
        end
      end
    end
    return
  end
  -- UNLINK frees large keys in the background, which RENAME would not.
  if not alone then call('UNLINK', unpack(names)) end
  for i = 1, #names do call(move, stem .. REST[i], names[i]) end
  put = put + #names
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

local unclaimed = {} -- of each position, entries that the stream has no more
for i = POS, #ARGV, WORDS do
  local stream, group, last, read, pending, frontier = unpack(ARGV, i, i + WORDS - 1)
  local there = groupexists(stream, group)
  local lost = 0
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
    local claimed = call('XCLAIM', stream, group, p.consumer, '0', p.id, 'TIME', p.at, 'RETRYCOUNT', p.n, 'FORCE', 'JUSTID')
    if #claimed == 0 then lost = lost + 1 end
  end
  unclaimed[#unclaimed + 1] = lost
  if frontier ~= '' then call('UNLINK', frontier) end
end

-- 4. What was staged and isn't in place, and the record.
for i = POS, #ARGV, WORDS do
  if ARGV[i + 4] ~= '' then call('UNLINK', ARGV[i + 4]) end
end
slices(nfixed, function(from, to)
  for i = 1, to - from + 1 do call('UNLINK', base('x', from) .. REST[i]) end
end)
call('UNLINK', P .. 'map', P .. 'odd', P .. 'index', P .. 'absent', P .. 'expired', P .. 'assign', P .. 'ops', P .. 'schemas', P .. 'unchanged', P .. 'extras', P .. 'next')
local at = tonumber(call('HGET', rec, 'checkpoint') or '0')
if at < tonumber(checkpoint) then
  call('HSET', rec, 'checkpoint', checkpoint)
  call('HDEL', rec, 'checkpointAt')
end
call('HSET', rec, 'incarnation', incarnation, 'epoch', newepoch, 'flipped', id)
if attempt ~= '0' then call('HSET', rec, 'attempt', attempt, 'cut', attempt) end
return {'ok', put, expired, removed, unclaimed}
