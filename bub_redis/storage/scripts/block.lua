-- Shared by every script that writes a tape: all checks come before the first write, so that nothing after it can fail.

-- A reply, or nil where the key is of another type. An absent value is false.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    return nil
  end
  return reply
end

local function text(number)
  return string.format('%.0f', number)
end

-- Where a tape stands, or nil and the code of the refusal. KEYS[first] and the two behind it are its stream, its
-- anchors and the latest of each name; its fields in `state` begin with `prefix`: '' or '<sidecar>/'.
local function position(first, state, prefix)
  local fields = read('HMGET', state, prefix .. 'generation', prefix .. 'count', prefix .. 'last', prefix .. 'ms',
    prefix .. 'usage')
  local length = read('XLEN', KEYS[first])
  if not fields or not length or not read('ZCARD', KEYS[first + 1]) or not read('HLEN', KEYS[first + 2]) then
    return nil, 'WRONGTYPE'
  end
  local at = {
    tape = KEYS[first], anchors = KEYS[first + 1], latest = KEYS[first + 2], state = state, prefix = prefix,
    generation = tonumber(fields[1] or 0),
    count = tonumber(fields[2] or 0),
    last = tonumber(fields[3] or 0),
    ms = tonumber(fields[4] or 0),
    usage = fields[5],
  }
  if length ~= at.count then
    return nil, 'MISMATCH'
  end
  return at
end

-- Whether what a writer saw last, a stream id, still stands there: a server that went back to an older copy of its data
-- has lost it, and may have been written to since.
local function holds(at, seen)
  local ms, number = string.match(seen, '^(%d+)%-(%d+)$')
  ms, number = tonumber(ms), tonumber(number)
  if not ms or number == 0 or (number == at.last and ms == at.ms) then
    return true
  end
  local behind = redis.call('XRANGE', at.tape, '(' .. seen, '+', 'COUNT', 1)[1]
  if behind then
    return tonumber(string.match(behind[1], '%-(%d+)$')) == number + 1
  end
  return at.last == number and at.ms >= ms
end

-- Take the block that starts at ARGV[first] as what is written next: number of entries, four fields each, place (from 0)
-- of the last entry that tells token usage or -1, number of anchors, place and name each. `at.after` is where ARGV goes on.
local function take_block(at, first)
  local now = redis.call('TIME')
  at.now = math.max(at.ms, now[1] * 1000 + math.floor(now[2] / 1000))
  at.stamp = text(at.now) .. '-'
  at.first = first + 1
  at.entries = tonumber(ARGV[first])
  at.tail = at.first + at.entries * 4
  at.after = at.tail + 2 + tonumber(ARGV[at.tail + 1]) * 2
  at.opening, at.kept = 0, {}
  return at
end

-- Let the block begin a new generation: its first `opening` entries stand before what is kept of the old one, which is
-- what stands behind `seen`, a stream id; '' keeps nothing. The ms is a later one, so that no stream id comes again.
local function restart(at, opening, seen)
  at.restart, at.opening = true, opening
  at.now = math.max(at.now, at.ms + 1)
  at.stamp = text(at.now) .. '-'
  local seen_number = at.last
  if seen ~= '' then
    at.kept = redis.call('XRANGE', at.tape, '(' .. seen, '+')
    seen_number = tonumber(string.match(seen, '%-(%d+)$'))
  end
  at.moved = opening - seen_number
  at.kept_anchors = redis.call('ZRANGEBYSCORE', at.anchors, '(' .. text(seen_number), '+inf', 'WITHSCORES')
  local used = at.usage and tonumber(string.match(at.usage, '%-(%d+)$'))
  at.kept_usage = used and used > seen_number and used + at.moved
end

local function number_of(at, place)
  if at.restart then
    return place + 1 + (place >= at.opening and #at.kept or 0)
  end
  return at.last + place + 1
end

local function id_of(at, number)
  return at.stamp .. text(number)
end

local function add(at, place, call)
  local field = at.first + place * 4
  return call('XADD', at.tape, id_of(at, number_of(at, place)), 'kind', ARGV[field], 'payload', ARGV[field + 1],
    'meta', ARGV[field + 2], 'date', ARGV[field + 3])
end

-- Take back the first entry of a block. The stream remembers its id, so the number comes again with a later ms only.
local function undo(at)
  redis.call('XDEL', at.tape, id_of(at, number_of(at, 0)))
  if at.count == 0 then
    redis.call('DEL', at.tape)
  end
  redis.call('HSET', at.state, at.prefix .. 'ms', text(at.now + 1))
end

-- Whether the user may do all that a write does: within a script each command's right is looked at when it is run, and a
-- refusal in the middle would leave half a write. A server that cannot be asked is taken to allow it.
local function may_write(at)
  local may = redis.acl_check_cmd
  return not may or (may('XADD', at.tape, '*', 'a', 'b') and may('XDEL', at.tape, '0-1') and may('DEL', at.tape)
    and may('ZADD', at.anchors, '0', 'a') and may('HSET', at.latest, 'a', 'b') and may('HSET', at.state, 'a', 'b')
    and may('HDEL', at.state, 'a'))
end

-- The first tape that the user may not write, or nil.
local function forbidden(tapes)
  for _, at in ipairs(tapes) do
    if not may_write(at) then
      return at
    end
  end
end

-- Write the first entry of every tape, or of none: a stream that once held a hand-made entry with a later id refuses it,
-- and so does a server that cannot write now. Returns the code of the refusal and the tape that refused, or nothing.
local function begin(tapes)
  local closed = forbidden(tapes)
  if closed then
    return 'NOPERM', closed
  end
  for n, at in ipairs(tapes) do
    if not at.restart and at.entries > 0 then
      local reply = add(at, 0, redis.pcall)
      if type(reply) == 'table' and reply.err then
        for earlier = 1, n - 1 do
          if tapes[earlier].begun then
            undo(tapes[earlier])
          end
        end
        return string.match(reply.err, '^%-?(%u+)') or 'ERR', at
      end
      at.begun = true
    end
  end
end

local function index(at, number, name)
  local id = id_of(at, number)
  redis.call('ZADD', at.anchors, text(number), id .. ' ' .. name)
  redis.call('HSET', at.latest, name, id)
  at.anchor = id
end

-- Write the entries of the block from one place up to another, and their anchors. Entries are told by their ids only where
-- one must be: behind the first, `<ms>-*` is the next number of the same ms, and costs half.
local function write_places(at, from, to)
  local start = (at.begun and from == 0) and 1 or from
  if start <= to and not (at.begun and start == 1) then
    add(at, start, redis.call)
    start = start + 1
  end
  local call, args, tape, id = redis.call, ARGV, at.tape, at.stamp .. '*'
  for field = at.first + start * 4, at.first + to * 4, 4 do
    call('XADD', tape, id, 'kind', args[field], 'payload', args[field + 1], 'meta', args[field + 2], 'date',
      args[field + 3])
  end
  for field = at.tail + 2, at.after - 1, 2 do
    local place = tonumber(args[field])
    if place >= from and place <= to then
      index(at, number_of(at, place), args[field + 1])
    end
  end
end

-- Empty the tape, then write the opening and what is kept behind it, bytes unchanged.
local function write_restart(at)
  redis.call('DEL', at.tape, at.anchors, at.latest)
  redis.call('HDEL', at.state, at.prefix .. 'usage', at.prefix .. 'anchor')
  at.generation, at.count, at.last = at.generation + 1, 0, 0
  write_places(at, 0, at.opening - 1)
  for n, entry in ipairs(at.kept) do
    redis.call('XADD', at.tape, id_of(at, at.opening + n), unpack(entry[2]))
  end
  for n = 1, #at.kept_anchors, 2 do
    index(at, at.kept_anchors[n + 1] + at.moved, string.match(at.kept_anchors[n], '^[^ ]* (.*)$'))
  end
end

-- Write all that `begin` left, and where the tape stands now. Returns the stream id of the last entry.
local function write(at)
  if at.restart then
    write_restart(at)
  end
  write_places(at, at.opening, at.entries - 1)
  local place = tonumber(ARGV[at.tail])
  local usage = place >= 0 and number_of(at, place) or at.kept_usage
  if usage then
    redis.call('HSET', at.state, at.prefix .. 'usage', id_of(at, usage))
  end
  if at.anchor then
    redis.call('HSET', at.state, at.prefix .. 'anchor', at.anchor)
  end
  local written = at.entries + #at.kept
  local last = at.last + written
  redis.call('HSET', at.state, at.prefix .. 'generation', text(at.generation), at.prefix .. 'count',
    text(at.count + written), at.prefix .. 'last', text(last), at.prefix .. 'ms', text(at.now))
  return id_of(at, last)
end

-- The refusal of one tape out of several, as a reply: a sidecar that is unfit is named, so that it can be left out.
local function refusal_of(name, code)
  if name == '' then
    return {'REFUSED', code}
  end
  return {'UNFIT', name, code}
end

-- Check the tapes that fill the rest of ARGV and KEYS: for each its name ('' for the main tape), the generation its
-- writer saw, how many entries open a new generation (-1 for no reset), the last stream id that its writer saw, and a
-- block; tape, anchors and latest of each. Returns them, ready to be written, or nil and the reply that refuses.
local function take_tapes(first, key, state)
  local tapes = {}
  while first <= #ARGV do
    local name = ARGV[first]
    local at, code = position(key, state, name == '' and '' or name .. '/')
    if not at then
      return nil, refusal_of(name, code)
    end
    if at.generation ~= tonumber(ARGV[first + 1]) then
      return nil, refusal_of(name, 'GENERATION')
    end
    if not holds(at, ARGV[first + 3]) then
      return nil, refusal_of(name, 'LOST')
    end
    take_block(at, first + 4)
    at.name = name
    if ARGV[first + 2] ~= '-1' then
      restart(at, tonumber(ARGV[first + 2]), ARGV[first + 3])
    end
    tapes[#tapes + 1] = at
    first, key = at.after, key + 3
  end
  return tapes
end

