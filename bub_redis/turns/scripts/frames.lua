-- Append frames to what followers of a turn see, on the tape side and only under the last grant; the TTL starts anew.
-- Frames are numbered by the writer, so that a repeat after a lost reply shows none of them twice.
-- KEYS: frames, fence
-- ARGV: 1 fence, 2 attempt, 3 TTL (ms), 4 most frames kept, then for each frame its number, type and data (JSON)
-- Returns: 1, or 0 if the session was granted to another
-- Cost: O(frames)
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local told = {}
for place = 1, newest and #newest[2] or 0, 2 do
  told[newest[2][place]] = newest[2][place + 1]
end
local shown = told.attempt == ARGV[2] and tonumber(told.n) or 0
for first = 5, #ARGV, 3 do
  if tonumber(ARGV[first]) > shown then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'type', ARGV[first + 1], 'attempt', ARGV[2],
      'n', ARGV[first], 'data', ARGV[first + 2])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
