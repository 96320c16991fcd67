-- Renew the leases of the attempts that a worker runs.
-- KEYS: 1 leases
-- ARGV: 1 prefix of turns, 2 worker, 3 lease (ms), then full id and attempt of each
-- Returns: for each 'HELD', 'CANCEL' if it is held and to be cancelled, or 'LOST' if the turn is another attempt's,
--          ended or gone
-- Cost: O(attempts)
local now = redis.call('TIME')
local deadline = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[3])
local verdicts = {}
for place = 4, #ARGV, 2 do
  local turn = ARGV[1] .. ARGV[place]
  local status, attempt, worker, cancel = unpack(redis.call('HMGET', turn, 'status', 'attempt', 'worker', 'cancel'))
  if status == 'running' and attempt == ARGV[place + 1] and worker == ARGV[2] then
    redis.call('ZADD', KEYS[1], deadline, ARGV[place])
    redis.call('HDEL', turn, 'overdue')
    verdicts[#verdicts + 1] = cancel and 'CANCEL' or 'HELD'
  else
    verdicts[#verdicts + 1] = 'LOST'
  end
end
return verdicts
