-- Grant a session to an attempt of a turn, or to a library fork; the fencing token rises with every new grant.
-- KEYS: lock, fence, turns, state, frames
-- ARGV: 1 turn or run id, 2 dispatch number ('-' for a library fork), 3 secret of the attempt, 4 lease (ms),
--       5 type of the first frame ('' for no frame), 6 its attempt, 7 its data (JSON), 8 TTL of frames (ms)
-- Returns: 'GRANTED' and the token; 'COMMITTED' and the turn's mark; 'BUSY' and who holds it; or 'REFUSED' and a code
-- Cost: O(1)
-- include block
local mark = read('HGET', KEYS[3], ARGV[1])
if mark then
  return {'COMMITTED', mark}
end
local held = read('GET', KEYS[1])
local fence = read('GET', KEYS[2])
if mark == nil or held == nil or fence == nil or not read('HLEN', KEYS[4]) or not read('XLEN', KEYS[5]) then
  return {'REFUSED', 'WRONGTYPE'}
end
local lock = ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[1]
if held == lock then
  return {'GRANTED', string.match(fence, '^%d+')}
end
if held then
  local dispatch = tonumber(string.match(held, '^(%d+):'))
  local ours = tonumber(ARGV[2])
  if not dispatch or not ours or dispatch >= ours then
    return {'BUSY', held}
  end
end
local token = string.format('%.0f', tonumber(fence and string.match(fence, '^%d+') or 0) + 1)
redis.call('SET', KEYS[1], lock, 'PX', ARGV[4])
redis.call('SET', KEYS[2], token .. ':' .. ARGV[3])
redis.call('HSET', KEYS[4], 'open', ARGV[1])
if ARGV[5] ~= '' then
  redis.call('XADD', KEYS[5], '*', 'type', ARGV[5], 'attempt', ARGV[6], 'n', 1, 'data', ARGV[7])
  redis.call('PEXPIRE', KEYS[5], ARGV[8])
end
return {'GRANTED', token}
