-- Make an attempt the running one, only if it is the current one. The same worker asking again gets the same answer.
-- An attempt of a turn that is cancelled, or has crashed too often, is a closing one: it runs nothing and is not charged.
-- KEYS: 8 turn, 9 receipt of the session
-- ARGV: 8 full id, 9 attempt, 10 worker, 11 lease (ms), 12 most crashes, 13 '1' if the worker may take a suspect (a turn one
--       crash from the most), 14 pause of a suspect that it may not take (ms), then the fields to return
-- Returns: 'STARTED', why it is a closing attempt ('' for one that is none), stream id and digest of the session's last
--          receipt ('' before the first) and the values of those fields; 'STALE'; 'GONE';
--          or 'SUSPECT': dispatched again, for a worker that may take it
-- Cost: O(1)
-- include dispatch
local status, attempt, worker, crashes, cancel =
  unpack(redis.call('HMGET', KEYS[8], 'status', 'attempt', 'worker', 'crashes', 'cancel'))
if not status then
  return {'GONE'}
end
local running_here = status == 'running' and worker == ARGV[10]
if attempt ~= ARGV[9] or not (status == 'queued' or running_here) then
  return {'STALE'}
end
-- The charge of the attempt itself does not count against it.
crashes = tonumber(crashes) - (running_here and redis.call('HGET', KEYS[8], 'charged') == '1' and 1 or 0)
local closing = cancel and 'cancelled' or (crashes >= tonumber(ARGV[12]) and 'crashed') or ''
if closing == '' and crashes > 0 and crashes == tonumber(ARGV[12]) - 1 and ARGV[13] ~= '1' and not running_here then
  dispatch(ARGV[8], now_ms(), tonumber(ARGV[14]))
  return {'SUSPECT'}
end
if not running_here then
  redis.call('HSET', KEYS[8], 'status', 'running', 'worker', ARGV[10], 'started_ms', text(now_ms()),
    'charged', closing == '' and 1 or 0)
  redis.call('HDEL', KEYS[8], 'reason', 'kind')
  if closing == '' then
    redis.call('HINCRBY', KEYS[8], 'crashes', 1)
  end
  redis.call('ZREM', KEYS[2], ARGV[8])
end
redis.call('ZADD', KEYS[1], text(now_ms() + ARGV[11]), ARGV[8])
local receipt, digest = unpack(redis.call('HMGET', KEYS[9], 'id', 'digest'))
local reply = {'STARTED', closing, receipt or '', digest or ''}
for place, value in ipairs(redis.call('HMGET', KEYS[8], unpack(ARGV, 15))) do
  reply[4 + place] = value
end
return reply
