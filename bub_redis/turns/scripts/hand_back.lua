-- Give a running attempt up, uncharged: the next attempt may be claimed after a pause.
-- KEYS: 6 turn
-- ARGV: 7 full id, 8 attempt, 9 worker, 10 pause (ms), 11 reason
-- Returns: 'HANDED_BACK', or 'STALE' if the attempt is not the current one (also when this is a repeat)
-- Cost: O(1)
-- include dispatch
local status, attempt, worker = unpack(redis.call('HMGET', KEYS[6], 'status', 'attempt', 'worker'))
if status ~= 'running' or attempt ~= ARGV[8] or worker ~= ARGV[9] then
  return {'STALE'}
end
redis.call('HINCRBY', KEYS[6], 'crashes', -1)
redis.call('HINCRBY', KEYS[6], 'handbacks', 1)
redis.call('HSET', KEYS[6], 'reason', ARGV[11])
dispatch(ARGV[7], now_ms(), tonumber(ARGV[10]))
return {'HANDED_BACK'}
