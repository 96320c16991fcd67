-- Give a running attempt up, uncharged: the next attempt may be claimed after a pause.
-- KEYS: 8 turn
-- ARGV: 8 full id, 9 attempt, 10 worker, 11 pause (ms), 12 reason, 13 kind of the error behind it ('' without one)
-- Returns: 'HANDED_BACK', or 'STALE' if the attempt is not the current one (also when this is a repeat)
-- Cost: O(1)
-- include dispatch
local status, attempt, worker, charged = unpack(redis.call('HMGET', KEYS[8], 'status', 'attempt', 'worker', 'charged'))
if status ~= 'running' or attempt ~= ARGV[9] or worker ~= ARGV[10] then
  return {'STALE'}
end
if charged == '1' then
  redis.call('HINCRBY', KEYS[8], 'crashes', -1)
end
redis.call('HINCRBY', KEYS[8], 'handbacks', 1)
redis.call('HSET', KEYS[8], 'reason', ARGV[12], 'kind', ARGV[13])
dispatch(ARGV[8], now_ms(), tonumber(ARGV[11]))
return {'HANDED_BACK'}
