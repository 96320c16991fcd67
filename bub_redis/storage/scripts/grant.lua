-- Grant a session to an attempt of a turn, or to a library fork; the fencing token rises with every new grant.
-- KEYS: lock, fence, turns, state, frames, journal, then tape, anchors and latest
-- ARGV: 1 turn or run id, 2 dispatch number ('-' for a library fork), 3 secret of the attempt, 4 lease (ms),
--       5 type of the first frame ('' for no frame), 6 its attempt, 7 its data (JSON), 8 TTL of frames (ms),
--       9 '1' to be refused also while a turn is open that nobody works on at the moment, '' for a fork: to be refused if
--       the tape cannot be written; then the fields of `state` that make a head
-- Returns: 'GRANTED', the token, the values of those fields and 1 if there is a journal; 'COMMITTED' and the turn's
--          mark; 'BUSY' and the turn or run that holds it; or 'REFUSED' and a code
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
-- A fork of what is left of a tape would have the model answer, and tools run, for nothing: its merge is refused.
if ARGV[9] == '' then
  local whole, code = position(7, KEYS[4], '')
  if not whole then
    return {'REFUSED', code}
  end
end
-- The tape as its fork will see it, read here since every fork asks for it next.
local function granted(token)
  return {'GRANTED', token, redis.call('HMGET', KEYS[4], unpack(ARGV, 10)), redis.call('EXISTS', KEYS[6])}
end

local lock = ARGV[2] .. ':' .. ARGV[3] .. ':' .. ARGV[1]
if held == lock then
  return granted(string.match(fence, '^%d+'))
end
if held then
  local dispatch, holder = string.match(held, '^([^:]*):[^:]*:(.*)$')
  dispatch = tonumber(dispatch)
  local ours = tonumber(ARGV[2])
  -- A later attempt takes over from an earlier one of its own turn, never from another turn.
  if not dispatch or not ours or dispatch >= ours or holder ~= ARGV[1] then
    return {'BUSY', holder or held}
  end
end
local open = redis.call('HMGET', KEYS[4], 'open', 'opener')
if ARGV[9] == '1' and open[1] and open[1] ~= ARGV[1] and open[2] ~= '-' then
  return {'BUSY', open[1]}
end
local token = string.format('%.0f', tonumber(fence and string.match(fence, '^%d+') or 0) + 1)
redis.call('SET', KEYS[1], lock, 'PX', ARGV[4])
redis.call('SET', KEYS[2], token .. ':' .. ARGV[3])
-- A library fork between two attempts of a turn does not close the turn, which has a journal.
if ARGV[2] ~= '-' or not open[1] or open[2] == '-' then
  redis.call('HSET', KEYS[4], 'open', ARGV[1], 'opener', ARGV[2])
end
if ARGV[5] ~= '' then
  -- A frame never decides: a foreign one may stand in its way.
  redis.pcall('XADD', KEYS[5], '*', 'type', ARGV[5], 'attempt', ARGV[6], 'n', 1, 'data', ARGV[7])
  redis.call('PEXPIRE', KEYS[5], ARGV[8])
end
return granted(token)
