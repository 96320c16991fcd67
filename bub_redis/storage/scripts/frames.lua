-- Append frames to what followers of a turn see, only under the last grant; the TTL starts anew.
-- KEYS: frames, fence
-- ARGV: 1 fence, 2 attempt, 3 TTL (ms), 4 most frames kept, then for each frame its number, type and data (JSON)
-- Returns: 1, or 0 if the session was granted to another
-- Cost: O(frames)
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
for first = 5, #ARGV, 3 do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'type', ARGV[first + 1], 'attempt', ARGV[2],
    'n', ARGV[first], 'data', ARGV[first + 2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
