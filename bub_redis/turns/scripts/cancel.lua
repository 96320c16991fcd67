-- Cancel a turn: end it here if it never started, else leave word with whoever runs it, now or next. A steering message
-- ends with its turn, which says whether it was used before.
-- KEYS: 8 turn
-- ARGV: 8 full id, 9 prefix of control lists, 10 TTL of an ended turn (ms)
-- Returns: 'CANCELLED' (nothing of it is on the tape), 'CANCELLING', 'ENDED' and the status, or 'UNKNOWN'
-- Cost: O(turns waiting in the session)
-- include dispatch
local status, started, worker = unpack(redis.call('HMGET', KEYS[8], 'status', 'started_ms', 'worker'))
if not status then
  return {'UNKNOWN'}
end
if status == 'steering' then
  redis.call('HSET', KEYS[8], 'cancel', 1)
  return {'CANCELLING'}
end
if not is_open(status) then
  return {'ENDED', status}
end
if not started then
  close(ARGV[8], now_ms(), 'cancelled', {}, ARGV[10])
  return {'CANCELLED'}
end
redis.call('HSET', KEYS[8], 'cancel', 1)
if status == 'queued' then
  -- Between two attempts: the next one closes the turn, without waiting for its pause.
  dispatch(ARGV[8], now_ms(), 0)
elseif worker then
  hint(ARGV[9] .. worker)
end
return {'CANCELLING'}
