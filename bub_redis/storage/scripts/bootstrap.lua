-- Append a block to a tape that has no anchor yet: create-if-absent, so it may be repeated and raced.
-- KEYS: tape, anchors, latest, state
-- ARGV: the block
-- Returns: 'OK' and the stream id of the last entry; 'EXISTS'; or 'REFUSED' and a code
-- Cost: O(entries of the block)
-- include block
local at, refusal = position(KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if not at then
  return {'REFUSED', refusal}
end
if redis.call('ZCARD', KEYS[2]) > 0 then
  return {'EXISTS'}
end
local id
id, refusal = write_block(at, KEYS[1], KEYS[2], KEYS[3], KEYS[4], 1)
if not id then
  return {'REFUSED', refusal}
end
return {'OK', id}
