-- Empty a tape and the tapes of its sidecars, and begin them anew, in one step.
-- KEYS: state, fence, lock, journal of the open turn, then tape, anchors and latest of the tape and of each sidecar
-- ARGV: 1 fence of our grant, or '' to take the session from whoever holds it, 2 the reset's own id,
--       3 digest of the last receipt that the opening names, 4 the open turn ('' without one, or with a fence), then the
--       tapes
-- Returns: 'OK', also for a repeat of a reset that was made; 'MOVED' if another receipt was given or turn opened since;
--          'UNFIT', the name of a sidecar that cannot be reset, and a code; or 'REFUSED' and a code. Only where it says 'OK'
--          anything was written
-- Cost: O(entries of the blocks, and of what is kept)
-- include block
local known = read('HMGET', KEYS[1], 'reset', 'digest', 'open')
local fence = read('GET', KEYS[2])
if not known or fence == nil or read('GET', KEYS[3]) == nil then
  return {'REFUSED', 'WRONGTYPE'}
end
if known[1] == ARGV[2] then
  return {'OK'}
end
if ARGV[1] ~= '' and fence ~= ARGV[1] then
  return {'REFUSED', 'FENCED'}
end
if (known[2] or '') ~= ARGV[3] or (ARGV[1] == '' and (known[3] or '') ~= ARGV[4]) then
  return {'MOVED'}
end
local tapes, refusal = take_tapes(5, 5, KEYS[1])
if not tapes then
  return refusal
end
if forbidden(tapes) then
  return {'REFUSED', 'NOPERM'}
end
for _, at in ipairs(tapes) do
  write(at)
end
redis.call('HSET', KEYS[1], 'reset', ARGV[2])
if ARGV[1] == '' then
  local token = tonumber(fence and string.match(fence, '^%d+') or 0) + 1
  redis.call('SET', KEYS[2], text(token) .. ':' .. ARGV[2])
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', KEYS[1], 'open', 'opener')
  -- Of the generation that ended, and nobody else would know of it any more.
  redis.call('DEL', KEYS[4])
end
return {'OK'}
