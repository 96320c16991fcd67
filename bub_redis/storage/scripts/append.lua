-- Append a batch to a tape outside any turn, whole, once per batch id.
-- KEYS: tape, anchors, latest, state, two hashes of batches that were made
-- ARGV: 1 batch id, 2 how long a repeat of it is known at least (ms), 3 prefix of the tape's fields in state, then the block
-- Returns: 'OK' and the stream id of the last entry; or 'REFUSED' and a code
-- Cost: O(entries of the batch)
-- include block
local made = read('HGET', KEYS[5], ARGV[1])
if made == false then
  made = read('HGET', KEYS[6], ARGV[1])
end
if made == nil then
  return {'REFUSED', 'WRONGTYPE'}
end
if made then
  return {'OK', made}
end
local at, refusal = position(1, KEYS[4], ARGV[3])
if not at then
  return {'REFUSED', refusal}
end
refusal = begin({take_block(at, 4)})
if refusal then
  return {'REFUSED', refusal}
end
local id = write(at)
-- The hashes take turns, one for each span of time: one expires when its turn comes again.
local now = redis.call('TIME')
local span_ms = tonumber(ARGV[2])
local span = math.floor((now[1] * 1000 + math.floor(now[2] / 1000)) / span_ms)
local batches = KEYS[5 + span % 2]
redis.call('HSET', batches, ARGV[1], id)
redis.call('PEXPIREAT', batches, text((span + 2) * span_ms))
return {'OK', id}
