-- Shared by the scripts that repair: the type of a key in which anything may stand, none where it is absent.
local function typed(key)
  return redis.call('TYPE', key).ok
end

