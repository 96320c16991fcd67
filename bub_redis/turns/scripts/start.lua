-- Make an attempt the running one, only if it is the current one. The same worker asking again gets the same answer.
-- KEYS: 6 turn
-- ARGV: 7 full id, 8 attempt, 9 worker, 10 lease (ms), then the fields to return
-- Returns: 'STARTED' and the values of those fields; 'STALE'; or 'GONE'
-- Cost: O(1)
-- include dispatch
local status, attempt, worker = unpack(redis.call('HMGET', KEYS[6], 'status', 'attempt', 'worker'))
if not status then
  return {'GONE'}
end
local running_here = status == 'running' and worker == ARGV[9]
if attempt ~= ARGV[8] or not (status == 'queued' or running_here) then
  return {'STALE'}
end
if not running_here then
  redis.call('HSET', KEYS[6], 'status', 'running', 'worker', ARGV[9], 'started_ms', text(now_ms()))
  redis.call('HINCRBY', KEYS[6], 'crashes', 1)
  redis.call('ZREM', KEYS[2], ARGV[7])
end
redis.call('ZADD', KEYS[1], text(now_ms() + ARGV[10]), ARGV[7])
local reply = {'STARTED'}
for field = 11, #ARGV do
  reply[#reply + 1] = redis.call('HGET', KEYS[6], ARGV[field])
end
return reply
