-- The one commit point: a fork's block and its receipt, with the blocks of its sidecars, whole, once, and only under the
-- last grant.
-- KEYS: state, turns, lock, fence, frames, journal, then tape, anchors and latest of the tape and of each sidecar
-- ARGV: 1 turn, 2 fence, 3 lock, 4 digest of the receipt, 5 status, 6 steers used,
--       7 type of the last frame ('' for no frame), 8 its attempt, 9 its number, 10 its data (JSON), 11 TTL of frames (ms),
--       then the tapes, the receipt last in the block of the first
-- Returns: 'OK' and the receipt's stream id; 'COMMITTED' and the mark of then; 'UNFIT', the name of a sidecar that cannot
--          take its block, and a code; or 'REFUSED' and a code. Only where it says 'OK' anything was written
-- Cost: O(entries of the blocks, and of what a reset keeps)
-- include block
local mark = read('HGET', KEYS[2], ARGV[1])
if mark then
  return {'COMMITTED', mark}
end
local lock = read('GET', KEYS[3])
local fence = read('GET', KEYS[4])
if mark == nil or lock == nil or fence == nil or not read('XLEN', KEYS[5]) then
  return {'REFUSED', 'WRONGTYPE'}
end
if fence ~= ARGV[2] then
  return {'REFUSED', 'FENCED'}
end
local tapes, refusal = take_tapes(12, 7, KEYS[1])
if not tapes then
  return refusal
end
local code, refused = begin(tapes)
if code then
  return refusal_of(refused.name, code)
end

local id = write(tapes[1])
for n = 2, #tapes do
  write(tapes[n])
end
redis.call('HSET', KEYS[1], 'receipt', id, 'digest', ARGV[4])
if redis.call('HGET', KEYS[1], 'open') == ARGV[1] then
  redis.call('HDEL', KEYS[1], 'open', 'opener')
end
redis.call('DEL', KEYS[6])
if lock == ARGV[3] then
  redis.call('DEL', KEYS[3])
end
redis.call('HSET', KEYS[2], ARGV[1], id .. ' ' .. ARGV[5] .. ' ' .. ARGV[6])
-- Behind the mark, and whatever comes of it: a foreign entry in the frames may stand in the way of this one.
if ARGV[7] ~= '' then
  redis.pcall('XADD', KEYS[5], '*', 'type', ARGV[7], 'attempt', ARGV[8], 'n', ARGV[9], 'data', ARGV[10], 'receipt', id)
  redis.pcall('PEXPIRE', KEYS[5], ARGV[11])
end
return {'OK', id}
