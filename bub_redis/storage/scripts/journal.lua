-- Append records to the journal of a turn, only under the last grant. Records are numbered by the writer, so that a
-- repeat after a lost reply writes none of them twice.
-- KEYS: journal, fence
-- ARGV: 1 fence, 2 number of the first record, then five values for each record: the tape of an
--       entry ('' for a note), and the fields of an entry
-- Returns: 1, or 0 if the session was granted to another
-- Cost: O(records)
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
local number = tonumber(ARGV[2])
for first = 3, #ARGV, 5 do
  local reply = redis.pcall('XADD', KEYS[1], string.format('0-%.0f', number), 'tape', ARGV[first],
    'kind', ARGV[first + 1], 'payload', ARGV[first + 2], 'meta', ARGV[first + 3], 'date', ARGV[first + 4])
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'equal or smaller', 1, true) then
    return reply
  end
  number = number + 1
end
return 1
