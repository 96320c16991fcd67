-- Append entries to a sidecar ahead of the merge that makes them count, whole, once, and only under the last grant.
-- KEYS: tape, anchors, latest, state, fence
-- ARGV: 1 fence, 2 prefix of the sidecar's fields in state, 3 generation and 4 last stream id that the fork saw, 5 id of
--       the batch, then the block
-- Returns: 'OK' and the stream id of the last entry, also for a repeat; or 'REFUSED' and a code
-- Cost: O(entries of the block)
-- include block
local fence = read('GET', KEYS[5])
if fence ~= ARGV[1] then
  return {'REFUSED', fence == nil and 'WRONGTYPE' or 'FENCED'}
end
local at, refusal = position(1, KEYS[4], ARGV[2])
if not at then
  return {'REFUSED', refusal}
end
if at.generation ~= tonumber(ARGV[3]) then
  return {'REFUSED', 'GENERATION'}
end
-- What one fork writes ahead it writes batch after batch, so its last one is all that a repeat can be.
local batch = ARGV[5]
local made = redis.call('HMGET', KEYS[4], ARGV[2] .. 'batch', ARGV[2] .. 'batch_id')
if made[1] == batch then
  return {'OK', made[2]}
end
if not holds(at, ARGV[4]) then
  return {'REFUSED', 'LOST'}
end
refusal = begin({take_block(at, 6)})
if refusal then
  return {'REFUSED', refusal}
end
local id = write(at)
redis.call('HSET', KEYS[4], ARGV[2] .. 'batch', batch, ARGV[2] .. 'batch_id', id)
return {'OK', id}
