-- Put a turn on its session's list, and dispatch it if the session is idle. The same turn again changes nothing.
-- KEYS: 6 turn, 7 queue of the session
-- ARGV: 7 full id, 8 digest of what was sent, then field and value of all that is kept with the turn
-- Returns: 'NEW' or 'SAME', the status and the place in the queue (0 = head, -1 = ended); or 'CONFLICT'
-- Cost: O(turns waiting in the session)
-- include dispatch
local known = redis.call('HGET', KEYS[6], 'digest')
if known and known ~= ARGV[8] then
  return {'CONFLICT'}
end
local verdict = 'SAME'
if not known then
  verdict = 'NEW'
  redis.call('HSET', KEYS[6], 'status', 'queued', 'attempt', 0, 'crashes', 0, 'handbacks', 0, 'digest', ARGV[8])
  for field = 9, #ARGV, 2 do
    redis.call('HSET', KEYS[6], ARGV[field], ARGV[field + 1])
  end
  redis.call('RPUSH', KEYS[7], ARGV[7])
  ensure_head(KEYS[7], now_ms())
end
return {verdict, redis.call('HGET', KEYS[6], 'status'), redis.call('LPOS', KEYS[7], ARGV[7]) or -1}
