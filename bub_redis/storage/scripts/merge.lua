-- The one commit point: a fork's block and its receipt, whole, once, and only under the last grant.
-- KEYS: tape, anchors, latest, state, turns, lock, fence, frames, journal
-- ARGV: 1 turn, 2 fence, 3 lock, 4 generation the fork saw, 5 digest of the receipt, 6 status, 7 steers used,
--       8 type of the last frame ('' for no frame), 9 its attempt, 10 its number, 11 its data (JSON), 12 TTL of frames (ms),
--       then the block, the receipt last
-- Returns: 'OK' and the receipt's stream id; 'COMMITTED' and the mark of then; or 'REFUSED' and a code
-- Cost: O(entries of the block)
-- include block
local mark = read('HGET', KEYS[5], ARGV[1])
if mark then
  return {'COMMITTED', mark}
end
local fence = read('GET', KEYS[7])
local lock = read('GET', KEYS[6])
if mark == nil or fence == nil or lock == nil or not read('XLEN', KEYS[8]) then
  return {'REFUSED', 'WRONGTYPE'}
end
if fence ~= ARGV[2] then
  return {'REFUSED', 'FENCED'}
end
local at, refusal = position(KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if not at then
  return {'REFUSED', refusal}
end
if at.generation ~= tonumber(ARGV[4]) then
  return {'REFUSED', 'GENERATION'}
end

local id
id, refusal = write_block(at, KEYS[1], KEYS[2], KEYS[3], KEYS[4], 13)
if not id then
  return {'REFUSED', refusal}
end
redis.call('HSET', KEYS[4], 'receipt', id, 'digest', ARGV[5])
redis.call('HDEL', KEYS[4], 'open')
redis.call('DEL', KEYS[9])
if lock == ARGV[3] then
  redis.call('DEL', KEYS[6])
end
if ARGV[8] ~= '' then
  redis.call('XADD', KEYS[8], '*', 'type', ARGV[8], 'attempt', ARGV[9], 'n', ARGV[10], 'data', ARGV[11], 'receipt', id)
  redis.call('PEXPIRE', KEYS[8], ARGV[12])
end
redis.call('HSET', KEYS[5], ARGV[1], id .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
return {'OK', id}
