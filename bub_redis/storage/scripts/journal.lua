-- Append records to the journal of a turn, only under the last grant. Records are numbered by the writer, so that a
-- repeat after a lost reply writes none of them twice; what others wrote in the way of a number goes.
-- KEYS: journal, fence
-- ARGV: 1 fence, 2 number of the first record, then five values for each record: the tape of an
--       entry ('' for a note), and the fields of an entry
-- Returns: 1; 0 if the session was granted to another; -1 if what the writer wrote before is gone, since a server that
--          went back to an older copy of its data has lost it
-- Cost: O(records); O(journal) once where others wrote into it
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end

local function record_at(first)
  return {'tape', ARGV[first], 'kind', ARGV[first + 1], 'payload', ARGV[first + 2], 'meta', ARGV[first + 3],
    'date', ARGV[first + 4]}
end

-- Whether the record stands there, which makes this a repeat.
local function is_written(id, record)
  local found = redis.call('XRANGE', KEYS[1], id, id)[1]
  local written = found and found[2] or {}
  for place = 1, math.max(#record, #written) do
    if written[place] ~= record[place] then
      return false
    end
  end
  return true
end

-- A stream takes no id below its largest, so it is made anew from what stands before `id`.
local function make_way(id)
  local before = redis.call('XRANGE', KEYS[1], '-', '(' .. id)
  redis.call('DEL', KEYS[1])
  for _, entry in ipairs(before) do
    redis.call('XADD', KEYS[1], entry[1], unpack(entry[2]))
  end
end

local number = tonumber(ARGV[2])
local before = string.format('0-%.0f', number - 1)
if number > 1 and #redis.call('XRANGE', KEYS[1], before, before) == 0 then
  return -1
end
for first = 3, #ARGV, 5 do
  local id, record = string.format('0-%.0f', number), record_at(first)
  local reply = redis.pcall('XADD', KEYS[1], id, unpack(record))
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'equal or smaller', 1, true) and not string.find(reply.err, 'exhausted', 1, true) then
      return reply
    end
    if not is_written(id, record) then
      make_way(id)
      redis.call('XADD', KEYS[1], id, unpack(record))
    end
  end
  number = number + 1
end
return 1
