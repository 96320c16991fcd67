-- Bring the keys beside a tape's stream in line with it, and set aside what is not the tape's, in one step.
-- KEYS: fence, state, tape, anchors, latest, damaged, then tape, anchors and latest as they were made anew: the stream
--       only where it must be
-- ARGV: 1 fence of our grant, 2 least token that the next grant must be above, 3 length of the stream as it was read,
--       4 id of its last entry then ('' for none), 5 number of fields of `state`, field and value each ('' for none),
--       then the ids of the entries to set aside
-- Returns: 'OK'; 'MOVED' if the stream is not as it was read; or 'REFUSED' and a code. Only where it says 'OK' anything
--          was written
-- Cost: O(entries that are set aside)
local fence = redis.pcall('GET', KEYS[1])
if fence ~= ARGV[1] then
  return {'REFUSED', type(fence) == 'table' and 'WRONGTYPE' or 'FENCED'}
end
local length = redis.pcall('XLEN', KEYS[3])
if type(length) == 'table' or type(redis.pcall('HLEN', KEYS[2])) == 'table' or type(redis.pcall('XLEN', KEYS[6])) == 'table' then
  return {'REFUSED', 'WRONGTYPE'}
end
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
if length ~= tonumber(ARGV[3]) or (newest[1] and newest[1][1] or '') ~= ARGV[4] then
  return {'MOVED'}
end
-- The first write: where it is refused, by a server that cannot write now, so would be all that follow.
local token, secret = string.match(fence, '^(%d+):(.*)$')
local raised = string.format('%.0f', math.max(tonumber(token), tonumber(ARGV[2]))) .. ':' .. secret
local reply = redis.pcall('SET', KEYS[1], raised)
if reply.err then
  return {'REFUSED', string.match(reply.err, '^%-?(%u+)') or 'ERR'}
end
local fields = 6 + tonumber(ARGV[5]) * 2
for field = 6, fields - 1, 2 do
  if ARGV[field + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[field])
  else
    redis.call('HSET', KEYS[2], ARGV[field], ARGV[field + 1])
  end
end
for place = fields, #ARGV do
  for _, entry in ipairs(redis.call('XRANGE', KEYS[3], ARGV[place], ARGV[place])) do
    local id, values = entry[1], entry[2]
    -- In parts: Lua takes no more values at once than this.
    for first = 1, #values, 7000 do
      redis.call('XADD', KEYS[6], '*', 'id', id, unpack(values, first, math.min(first + 6999, #values)))
    end
    redis.call('XDEL', KEYS[3], id)
  end
end
if redis.call('XLEN', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[3])
end
for n = 3, 5 do
  local remade = KEYS[n + 4]
  if n > 3 then
    redis.call('DEL', KEYS[n])
  end
  if redis.call('EXISTS', remade) == 1 then
    redis.call('RENAME', remade, KEYS[n])
    redis.call('PERSIST', KEYS[n])
  end
end
return {'OK'}
