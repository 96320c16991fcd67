-- Find where a slice begins: the latest anchor of a name, or the latest that has one of another name behind it.
-- KEYS: anchors, state, latest
-- ARGV: 1 field of the generation in state, 2 highest entry number that counts, 3 name,
--       4 name of the anchor that ends the slice (left out: open end)
-- Returns: the generation ('' for none), then the stream id of the anchor and of the one that ends the slice ('' for
--          none); only the generation where there is no such anchor
-- Cost: O(1) for the latest of a name; else O(anchors behind the one found)

local generation = redis.call('HGET', KEYS[2], ARGV[1]) or ''
local newest = ARGV[2]
local closing = ''
if not ARGV[4] then
  local id = redis.call('HGET', KEYS[3], ARGV[3])
  if not id then
    return {generation}
  end
  -- A later one that came after the moment that is asked about says nothing of those before it.
  if tonumber(string.match(id, '%d+$')) <= tonumber(newest) then
    return {generation, id, closing}
  end
end
while true do
  local members = redis.call('ZREVRANGEBYSCORE', KEYS[1], newest, '-inf', 'LIMIT', 0, 256)
  for _, member in ipairs(members) do
    local space = string.find(member, ' ', 1, true)
    local id, name = string.sub(member, 1, space - 1), string.sub(member, space + 1)
    if name == ARGV[3] and (not ARGV[4] or closing ~= '') then
      return {generation, id, closing}
    end
    if name == ARGV[4] then
      closing = id
    end
    newest = '(' .. string.match(id, '%d+$')
  end
  if #members < 256 then
    return {generation}
  end
end
