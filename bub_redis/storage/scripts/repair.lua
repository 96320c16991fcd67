-- Bring the keys beside a tape's stream in line with it, and set aside what is not the tape's, in one step.
-- KEYS: fence, state, turns, tape, anchors, latest, damaged, then turns, tape, anchors and latest as they were made anew,
--       then keys of another type, each with the name under which it is set aside
-- ARGV: 1 fence of the session, 2 id of the repair, 3 field of `state` that keeps it, 4 least token of the fence,
--       5 length of the stream as it was read, 6 id of its last entry then ('' for none), 7 '1' if the index of anchors is
--       made anew, 8 number of keys to set aside, the type of each that it should have, then number of fields of `state`,
--       field and value each ('' for none), then the ids of the entries to set aside
-- Returns: 'OK', also for a repeat; 'MOVED' if the stream is not as it was read; or 'REFUSED' and a code. Only where it says
--          'OK' anything was written
-- Cost: O(entries that are set aside)
-- include typed
if typed(KEYS[2]) == 'hash' and redis.call('HGET', KEYS[2], ARGV[3]) == ARGV[2] then
  return {'OK'}
end
if typed(KEYS[1]) ~= 'string' or redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'REFUSED', 'FENCED'}
end
local length, last_id = 0, ''
if typed(KEYS[4]) == 'stream' then
  length = redis.call('XLEN', KEYS[4])
  local newest = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
  last_id = newest[1] and newest[1][1] or ''
end
if length ~= tonumber(ARGV[5]) or last_id ~= ARGV[6] then
  return {'MOVED'}
end
-- The first write: where it is refused, by a server that cannot write now, so would be all that follow.
local token, secret = string.match(ARGV[1], '^(%d+):(.*)$')
local raised = string.format('%.0f', math.max(tonumber(token), tonumber(ARGV[4])))
local reply = redis.pcall('SET', KEYS[1], raised .. ':' .. secret)
if reply.err then
  return {'REFUSED', string.match(reply.err, '^%-?(%u+)') or 'ERR'}
end

local kinds = tonumber(ARGV[8])
for n = 1, kinds do
  local key, found = KEYS[10 + 2 * n], typed(KEYS[10 + 2 * n])
  if found ~= 'none' and found ~= ARGV[8 + n] then
    redis.call('RENAME', key, KEYS[11 + 2 * n])
  end
end
local first = 10 + kinds
local behind = first + tonumber(ARGV[9 + kinds]) * 2
for field = first, behind - 1, 2 do
  if ARGV[field + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[field])
  else
    redis.call('HSET', KEYS[2], ARGV[field], ARGV[field + 1])
  end
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
for place = behind, #ARGV do
  for _, entry in ipairs(redis.call('XRANGE', KEYS[4], ARGV[place], ARGV[place])) do
    local id, values = entry[1], entry[2]
    -- In parts: Lua takes no more values at once than this.
    for part = 1, #values, 7000 do
      redis.call('XADD', KEYS[7], '*', 'id', id, unpack(values, part, math.min(part + 6999, #values)))
    end
    redis.call('XDEL', KEYS[4], id)
  end
end
if redis.call('EXISTS', KEYS[4]) == 1 and redis.call('XLEN', KEYS[4]) == 0 then
  redis.call('DEL', KEYS[4])
end
if ARGV[7] == '1' then
  redis.call('DEL', KEYS[5], KEYS[6])
end
for n = 8, 11 do
  if redis.call('EXISTS', KEYS[n]) == 1 then
    local key = n == 8 and KEYS[3] or KEYS[n - 5]
    redis.call('RENAME', KEYS[n], key)
    redis.call('PERSIST', key)
  end
end
return {'OK'}
