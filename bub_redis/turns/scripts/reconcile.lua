-- Find turns that nobody looks after and have them run again. It never ends a turn.
-- An overdue lease is marked and looked at again one beat later: after an outage every lease is overdue, and the
-- workers that still run their turns get the chance to say so.
-- ARGV: 8 beat (ms), 9 longest grace of a waiting head (ms), 10 most turns of each kind to look at, 11 longest that any
--       deadline may lie ahead (ms)
-- Returns: for each turn acted on, what was done ('redispatched', 'rearmed', 'gone') and its full id
-- Cost: O(overdue turns, bounded)
-- include dispatch
local now = now_ms()
local done = {}

local function note(what, full_id)
  done[#done + 1] = what
  done[#done + 1] = full_id
end

local function forget(full_id)
  redis.call('ZREM', KEYS[1], full_id)
  redis.call('ZREM', KEYS[2], full_id)
  ensure_head(queue_of(full_id), now)
  note('gone', full_id)
end

-- A clock that was set back, or a fail-over to a host whose clock is behind, leaves deadlines that never come.
for _, set in ipairs({KEYS[1], KEYS[2], KEYS[5]}) do
  local ahead = redis.call('ZRANGEBYSCORE', set, '(' .. text(now + ARGV[11]), '+inf', 'LIMIT', 0, ARGV[10])
  for _, member in ipairs(ahead) do
    redis.call('ZADD', set, text(now), member)
  end
end

for _, full_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'LIMIT', 0, ARGV[10])) do
  local turn = ARGV[1] .. full_id
  local status, overdue = unpack(redis.call('HMGET', turn, 'status', 'overdue'))
  if status ~= 'running' then
    forget(full_id)
  elseif overdue then
    dispatch(full_id, now, 0)
    note('redispatched', full_id)
  else
    redis.call('HSET', turn, 'overdue', text(now))
    redis.call('ZADD', KEYS[1], text(now + ARGV[8]), full_id)
  end
end

for _, full_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, ARGV[10])) do
  local turn = ARGV[1] .. full_id
  local status, grace = unpack(redis.call('HMGET', turn, 'status', 'grace'))
  local job = job_of(full_id)
  if status ~= 'queued' then
    forget(full_id)
  elseif redis.call('ZSCORE', KEYS[5], job) and redis.call('EXISTS', ARGV[2] .. job) == 1 then
    -- Still in the queue: all workers are busy or away. Look again, ever more rarely.
    local longer = math.min((tonumber(grace) or 0) * 2, tonumber(ARGV[9]))
    redis.call('HSET', turn, 'grace', text(longer))
    redis.call('ZADD', KEYS[2], text(now + longer), full_id)
    hint(KEYS[4])
    note('rearmed', full_id)
  else
    dispatch(full_id, now, 0)
    note('redispatched', full_id)
  end
end
return done
