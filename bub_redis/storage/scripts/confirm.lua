-- Write a commit's mark once more as it is, so that WAIT on this connection covers the commit: WAIT only looks at what
-- its own connection has written.
-- KEYS: turns
-- ARGV: turn, its mark
-- Returns: 1, or 0 if the mark is not there
-- Cost: O(1)
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
