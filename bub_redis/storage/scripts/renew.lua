-- Keep a granted session: renew its lock, or take it again if it expired while the grant is the last one and still open.
-- KEYS: lock, fence, state
-- ARGV: lock, fence, turn or run id, lease (ms)
-- Returns: 1 while the session is ours, else 0
-- Cost: O(1)
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] or
    (not held and redis.call('GET', KEYS[2]) == ARGV[2] and redis.call('HGET', KEYS[3], 'open') == ARGV[3]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
  return 1
end
return 0
