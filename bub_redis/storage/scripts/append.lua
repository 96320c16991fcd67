-- Append a batch to a tape outside any turn, whole, once per batch id.
-- KEYS: tape, anchors, latest, state, batch
-- ARGV: how long a repeat of the batch is known (ms), then the block
-- Returns: 'OK' and the stream id of the last entry; or 'REFUSED' and a code
-- Cost: O(entries of the batch)
-- include block
local made = read('GET', KEYS[5])
if made then
  return {'OK', made}
end
local at, refusal = position(KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if not at then
  return {'REFUSED', refusal}
end
local id
id, refusal = write_block(at, KEYS[1], KEYS[2], KEYS[3], KEYS[4], 2)
if not id then
  return {'REFUSED', refusal}
end
redis.call('SET', KEYS[5], id, 'PX', ARGV[1])
return {'OK', id}
