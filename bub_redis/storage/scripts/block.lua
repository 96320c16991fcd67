-- Shared by append, bootstrap and merge: all checks come before the first write, so that nothing after it can fail.

-- A reply, or nil where the key is of another type. An absent value is false.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    return nil
  end
  return reply
end

-- Where the tape stands, or nil and the code of the refusal.
local function position(tape, anchors, latest, state)
  local fields = read('HMGET', state, 'generation', 'count', 'last', 'ms')
  local length = read('XLEN', tape)
  if not fields or not length or not read('ZCARD', anchors) or not read('HLEN', latest) then
    return nil, 'WRONGTYPE'
  end
  local at = {
    generation = tonumber(fields[1] or 0),
    count = tonumber(fields[2] or 0),
    last = tonumber(fields[3] or 0),
    ms = tonumber(fields[4] or 0),
  }
  if length ~= at.count then
    return nil, 'MISMATCH'
  end
  return at
end

-- Write the block that starts at ARGV[first]: number of entries, four fields each, number of anchors, place (from 0)
-- and name each. Moves `at` and returns the stream id of the last entry, or nil and the code of the refusal.
local function write_block(at, tape, anchors, latest, state, first)
  local now = redis.call('TIME')
  local ms = math.max(at.ms, now[1] * 1000 + math.floor(now[2] / 1000))
  local prefix = string.format('%.0f-', ms)
  local entries = tonumber(ARGV[first])
  local id
  for place = 0, entries - 1 do
    local field = first + 1 + place * 4
    id = prefix .. string.format('%.0f', at.last + place + 1)
    -- The first write may meet a hand-made entry with a later id, or a server that cannot write now.
    local call = place == 0 and redis.pcall or redis.call
    local reply = call('XADD', tape, id, 'kind', ARGV[field], 'payload', ARGV[field + 1],
      'meta', ARGV[field + 2], 'date', ARGV[field + 3])
    if type(reply) == 'table' and reply.err then
      return nil, string.match(reply.err, '^%-?(%u+)') or 'ERR'
    end
  end
  local place_of_anchors = first + 1 + entries * 4
  for anchor = 0, tonumber(ARGV[place_of_anchors]) - 1 do
    local number = at.last + ARGV[place_of_anchors + 1 + anchor * 2] + 1
    local name = ARGV[place_of_anchors + 2 + anchor * 2]
    local anchor_id = prefix .. string.format('%.0f', number)
    redis.call('ZADD', anchors, number, anchor_id .. ' ' .. name)
    redis.call('HSET', latest, name, anchor_id)
  end
  at.ms = ms
  at.last = at.last + entries
  redis.call('HSET', state, 'count', string.format('%.0f', at.count + entries),
    'last', string.format('%.0f', at.last), 'ms', string.format('%.0f', ms))
  return id
end

