-- Take jobs that are due out of arq's queue: the claim is the removal. A job lost after it is dispatched again, as
-- nobody starts its turn.
-- KEYS: 1 arq's queue
-- ARGV: 1 most jobs to take
-- Returns: job ids, oldest first
-- Cost: O(jobs taken)
local now = redis.call('TIME')
local due = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
local jobs = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', due, 'LIMIT', 0, ARGV[1])
for _, job in ipairs(jobs) do
  redis.call('ZREM', KEYS[1], job)
end
return jobs
