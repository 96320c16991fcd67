-- Shared by all scripts of the queue side. It is one primary, never a cluster: a session's head is only known inside
-- a script, so keys of turns are made here, from a prefix and an encoded id.
-- KEYS: 1 leases, 2 waiting, 3 dispatches, 4 wake, 5 arq's queue, 6 dead, 7 count of open turns; the rest is the
--       script's own
-- ARGV: 1 prefix of turns, 2 arq's prefix of jobs, 3 prefix of job ids, 4 grace of a waiting head (ms), 5 TTL of a job (ms),
--       6 TTL of hints (ms), 7 prefix of queues; the rest is the script's own

local function text(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function queue_of(full_id)
  return ARGV[7] .. string.match(full_id, '^[^/]*')
end

local function job_of(full_id)
  return ARGV[3] .. full_id .. ':' .. (redis.call('HGET', ARGV[1] .. full_id, 'attempt') or '0')
end

-- The count is a bound and no truth: where it was lost or deleted, it begins again at none.
local function count_one_less()
  if redis.call('DECR', KEYS[7]) < 0 then
    redis.call('SET', KEYS[7], 0)
  end
end

local function is_open(status)
  return status == 'queued' or status == 'running'
end

-- Nobody looks after the turn any more: no job of its present attempt, no lease, no place among the waiting.
local function withdraw(full_id)
  local job = job_of(full_id)
  redis.call('ZREM', KEYS[5], job)
  redis.call('DEL', ARGV[2] .. job)
  redis.call('ZREM', KEYS[1], full_id)
  redis.call('ZREM', KEYS[2], full_id)
end

local function hint(list)
  local hints = redis.call('LPUSH', list, '1')
  if hints == 1 then
    redis.call('PEXPIRE', list, ARGV[6])
  elseif hints > 64 then
    redis.call('LTRIM', list, 0, 63)
  end
end

-- The next attempt of a turn, which may be claimed `pause` ms from now.
local function dispatch(full_id, now, pause)
  local turn = ARGV[1] .. full_id
  local earlier = redis.call('HGET', turn, 'attempt')
  if earlier ~= '0' then
    withdraw(full_id)
    redis.call('HDEL', turn, 'worker', 'overdue')
  end
  local attempt = text((earlier or 0) + 1)
  redis.call('HSET', turn, 'status', 'queued', 'attempt', attempt, 'dispatch', redis.call('INCR', KEYS[3]),
    'grace', ARGV[4])
  local job = ARGV[3] .. full_id .. ':' .. attempt
  -- First of all it is looked after: a user may lack the right to one of the commands or keys below.
  redis.call('ZADD', KEYS[2], text(now + pause + ARGV[4]), full_id)
  redis.call('SET', ARGV[2] .. job, redis.call('HGET', turn, 'body'), 'PX', ARGV[5])
  redis.call('ZADD', KEYS[5], text(now + pause), job)
  hint(KEYS[4])
end

-- Whatever happened to a session: its head is looked after.
local function ensure_head(queue, now)
  local head = redis.call('LINDEX', queue, 0)
  while head and redis.call('EXISTS', ARGV[1] .. head) == 0 do
    redis.call('LPOP', queue)
    count_one_less()
    head = redis.call('LINDEX', queue, 0)
  end
  if head and not redis.call('ZSCORE', KEYS[2], head) and not redis.call('ZSCORE', KEYS[1], head) then
    dispatch(head, now, 0)
  end
end

-- Nothing is left to do for what ended, so its content goes; what tells a repeat from a conflict stays for `ttl` ms.
local function ended(turn, now, status, ttl)
  redis.call('HSET', turn, 'status', status, 'ended_ms', text(now))
  redis.call('HDEL', turn, 'prompt', 'options', 'state', 'metadata', 'body', 'overdue')
  redis.call('PEXPIRE', turn, ttl)
end

-- The turn has ended, and with it its steering messages that are among `used`, by full id, or cancelled. The others come
-- too late for it and become turns of their own, in its place.
local function close(full_id, now, status, used, ttl)
  local turn = ARGV[1] .. full_id
  local queue = queue_of(full_id)
  withdraw(full_id)
  ended(turn, now, status, ttl)
  local steers = redis.call('LRANGE', turn .. ':steer', 0, -1)
  redis.call('DEL', turn .. ':steer')
  for place = 1, #steers do
    local steer = ARGV[1] .. steers[place]
    if used[steers[place]] then
      ended(steer, now, 'steered', ttl)
    elseif redis.call('HGET', steer, 'cancel') then
      ended(steer, now, 'cancelled', ttl)
    else
      redis.call('HSET', steer, 'status', 'queued')
      -- In the turn's own place: it need not be the head, if it is cancelled while it waits.
      if redis.call('LINSERT', queue, 'BEFORE', full_id, steers[place]) < 1 then
        redis.call('RPUSH', queue, steers[place])
      end
      redis.call('INCR', KEYS[7])
    end
  end
  redis.call('LREM', queue, 1, full_id)
  count_one_less()
  ensure_head(queue, now)
end

