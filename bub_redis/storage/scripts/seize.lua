-- Take a session for a repair: also where lock or fence is of another type, or the lock would never expire. No other key
-- is looked at, since any of them may be what has to be repaired.
-- KEYS: lock, fence, then the names under which each is set aside if it is not one of ours
-- ARGV: lock, secret, lease (ms)
-- Returns: 'SEIZED' and the fence, also for a repeat, which renews the lock; 'BUSY' and who holds the session; or
--          'FENCED' if it was granted to somebody else since
-- Cost: O(1)
-- include typed
local function set_aside(key, name)
  if typed(key) ~= 'string' and typed(key) ~= 'none' then
    redis.call('RENAME', key, name)
  end
end
if typed(KEYS[1]) ~= 'none' and redis.call('TTL', KEYS[1]) == -1 then
  redis.call('RENAME', KEYS[1], KEYS[3])
end
set_aside(KEYS[1], KEYS[3])
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
  return {'BUSY', string.match(held, '^[^:]*:[^:]*:(.*)$') or held}
end
set_aside(KEYS[2], KEYS[4])
local fence = redis.call('GET', KEYS[2])
if not held then
  local token = tonumber(fence and string.match(fence, '^%d+') or 0) + 1
  fence = string.format('%.0f', token) .. ':' .. ARGV[2]
  redis.call('SET', KEYS[2], fence)
elseif not fence or string.match(fence, ':(.*)$') ~= ARGV[2] then
  return {'FENCED'}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return {'SEIZED', fence}
