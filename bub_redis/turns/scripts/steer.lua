-- Send a message into a turn that has not ended; into the queue as a turn of its own where it has, or is not known.
-- A message is kept as the turn that it becomes if it comes too late, so its id is known either way: sent again, nothing
-- is done.
-- KEYS: 8 turn of the message, 9 queue of the session, 10 turn to steer, 11 its steering messages
-- ARGV: 8 full id of the message, 9 digest of what was sent, 10 most open turns of a session, 11 most open turns in all,
--       12 prefix of control lists, 13 most messages for one turn, then field and value of all that is kept with it
-- Returns: 'STEERED', 'ENQUEUED'; 'CONFLICT'; or 'FULL', which bound, how many there are, the bound
-- Cost: O(1)
-- include dispatch
-- include put
local status, known = unpack(redis.call('HMGET', KEYS[8], 'status', 'digest'))
local target, worker = unpack(redis.call('HMGET', KEYS[10], 'status', 'worker'))
if known == ARGV[9] and (status == 'steering' or status == 'steered') then
  if status == 'steering' and is_open(target) and not redis.call('LPOS', KEYS[11], ARGV[8]) then
    -- As in `put_again`.
    redis.call('RPUSH', KEYS[11], ARGV[8])
  end
  return {'STEERED'}
end
if known == ARGV[9] and status == 'queued' and not is_open(target) then
  put_again(KEYS[9])
end
-- A message becomes a turn of its own when its target ends: beside an open one, the id is that of somebody else's turn.
if known then
  return {(known ~= ARGV[9] or is_open(target)) and 'CONFLICT' or 'ENQUEUED'}
end
if is_open(target) then
  local messages = redis.call('LLEN', KEYS[11])
  if messages >= tonumber(ARGV[13]) then
    return {'FULL', 'turn', messages, ARGV[13]}
  end
  keep(KEYS[8], 'steering', 14)
  redis.call('RPUSH', KEYS[11], ARGV[8])
  if worker then
    hint(ARGV[12] .. worker)
  end
  return {'STEERED'}
end
local refusal = no_room(KEYS[9])
if refusal then
  return refusal
end
put(KEYS[8], KEYS[9], 14)
return {'ENQUEUED'}
