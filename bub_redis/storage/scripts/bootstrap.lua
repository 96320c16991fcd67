-- Append a block to a tape that has no anchor yet: create-if-absent, so it may be repeated and raced.
-- KEYS: tape, anchors, latest, state
-- ARGV: 1 prefix of the tape's fields in state, then the block
-- Returns: 'OK' and the stream id of the last entry; 'EXISTS'; or 'REFUSED' and a code
-- Cost: O(entries of the block)
-- include block
local at, refusal = position(1, KEYS[4], ARGV[1])
if not at then
  return {'REFUSED', refusal}
end
if redis.call('ZCARD', at.anchors) > 0 then
  return {'EXISTS'}
end
refusal = begin({take_block(at, 2)})
if refusal then
  return {'REFUSED', refusal}
end
return {'OK', write(at)}
