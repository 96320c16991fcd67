-- Shared by all scripts of the queue side. It is one primary, never a cluster: a session's head is only known inside
-- a script, so keys of turns are made here, from a prefix and an encoded id.
-- KEYS: 1 leases, 2 waiting, 3 dispatches, 4 wake, 5 arq's queue; the rest is the script's own
-- ARGV: 1 prefix of turns, 2 arq's prefix of jobs, 3 prefix of job ids, 4 grace of a waiting head (ms), 5 TTL of a job (ms),
--       6 TTL of wake hints (ms); the rest is the script's own

local function text(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function job_of(full_id)
  return ARGV[3] .. full_id .. ':' .. (redis.call('HGET', ARGV[1] .. full_id, 'attempt') or '0')
end

-- Nobody looks after the turn any more: no job of its present attempt, no lease, no place among the waiting.
local function withdraw(full_id)
  local job = job_of(full_id)
  redis.call('ZREM', KEYS[5], job)
  redis.call('DEL', ARGV[2] .. job)
  redis.call('ZREM', KEYS[1], full_id)
  redis.call('ZREM', KEYS[2], full_id)
end

local function wake()
  redis.call('LPUSH', KEYS[4], '1')
  redis.call('LTRIM', KEYS[4], 0, 63)
  redis.call('PEXPIRE', KEYS[4], ARGV[6])
end

-- The next attempt of a turn, which may be claimed `pause` ms from now.
local function dispatch(full_id, now, pause)
  local turn = ARGV[1] .. full_id
  withdraw(full_id)
  redis.call('HINCRBY', turn, 'attempt', 1)
  redis.call('HSET', turn, 'status', 'queued', 'dispatch', redis.call('INCR', KEYS[3]), 'grace', ARGV[4])
  redis.call('HDEL', turn, 'worker', 'overdue')
  local job = job_of(full_id)
  redis.call('SET', ARGV[2] .. job, redis.call('HGET', turn, 'body'), 'PX', ARGV[5])
  redis.call('ZADD', KEYS[5], text(now + pause), job)
  redis.call('ZADD', KEYS[2], text(now + pause + ARGV[4]), full_id)
  wake()
end

-- Whatever happened to a session: its head is looked after.
local function ensure_head(queue, now)
  local head = redis.call('LINDEX', queue, 0)
  while head and redis.call('EXISTS', ARGV[1] .. head) == 0 do
    redis.call('LPOP', queue)
    head = redis.call('LINDEX', queue, 0)
  end
  if head and not redis.call('ZSCORE', KEYS[2], head) and not redis.call('ZSCORE', KEYS[1], head) then
    dispatch(head, now, 0)
  end
end

