-- Give a session back: compare and delete in one step, so that nobody else's lock is ever removed.
-- KEYS: lock, state
-- ARGV: lock, and the run id if nothing of it is left open ('' for a turn that another attempt goes on with)
-- Returns: 1 if it was ours, else 0
-- Cost: O(1)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if redis.call('HGET', KEYS[2], 'open') == ARGV[2] then
  redis.call('HDEL', KEYS[2], 'open', 'opener')
end
return redis.call('DEL', KEYS[1])
