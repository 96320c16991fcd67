-- Shared by enqueue and steer: keep a new turn, and put it behind the others of its session.
-- ARGV: 8 full id, 9 digest of what was sent, 10 most open turns of a session, 11 most open turns in all

-- The refusal if there is no room for one more turn, else nil.
local function no_room(queue)
  local waiting = redis.call('LLEN', queue)
  if waiting >= tonumber(ARGV[10]) then
    return {'FULL', 'session', waiting, ARGV[10]}
  end
  local open = tonumber(redis.call('GET', KEYS[7]) or 0)
  if open >= tonumber(ARGV[11]) then
    return {'FULL', 'all', open, ARGV[11]}
  end
end

-- Keep all that travels with a turn, from field and value at ARGV[first] on.
local function keep(turn, status, first)
  redis.call('HSET', turn, 'status', status, 'attempt', 0, 'crashes', 0, 'handbacks', 0, 'digest', ARGV[9],
    unpack(ARGV, first))
end

-- Put a turn that waits where it belongs, if it is not there: the first time may have been refused half-way, for a right
-- that was missing. It may be missing in the count of open turns, which is only a bound.
local function put_again(queue)
  if not redis.call('LPOS', queue, ARGV[8]) then
    redis.call('RPUSH', queue, ARGV[8])
  end
  ensure_head(queue, now_ms())
end

local function put(turn, queue, first)
  keep(turn, 'queued', first)
  redis.call('INCR', KEYS[7])
  if redis.call('RPUSH', queue, ARGV[8]) == 1 then
    dispatch(ARGV[8], now_ms(), 0)
  else
    ensure_head(queue, now_ms())
  end
end

