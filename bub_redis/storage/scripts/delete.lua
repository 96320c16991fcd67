-- Remove a tape and its sidecars, with all that was known of them, but for the lock, which its holder gives back last.
-- KEYS: fence, then every key to remove
-- ARGV: 1 fence of our grant
-- Returns: 'OK'; or 'REFUSED' and a code
-- Cost: O(keys); large values are freed in the background
local fence = redis.pcall('GET', KEYS[1])
if fence ~= ARGV[1] then
  -- A repeat finds nothing left to do.
  if redis.call('EXISTS', unpack(KEYS)) == 0 then
    return {'OK'}
  end
  return {'REFUSED', type(fence) == 'table' and 'WRONGTYPE' or 'FENCED'}
end
redis.call('UNLINK', unpack(KEYS))
return {'OK'}
