-- Marks a job's record as being restored; fence.lua comes before it.
-- KEYS: record, lease. ARGV: restore id, expected epoch, mark (JSON), holder, token.
local no = fenced(KEYS[2], ARGV[4], ARGV[5])
if no then return no end
local mark = redis.call('HGET', KEYS[1], 'restore')
if mark then return {'marked', mark} end
if redis.call('HGET', KEYS[1], 'flipped') == ARGV[1] then return {'used'} end
local epoch = redis.call('HGET', KEYS[1], 'epoch') or '0'
if epoch ~= ARGV[2] then return {'fenced', epoch} end
redis.call('HSET', KEYS[1], 'restore', ARGV[3])
return {'ok'}
