-- Put a turn on its session's list, and dispatch it if the session is idle. The same turn again changes nothing.
-- KEYS: 8 turn, 9 queue of the session
-- ARGV: 8 full id, 9 digest of what was sent, 10 most open turns of a session, 11 most open turns in all, then field
--       and value of all that is kept with the turn
-- Returns: 'NEW' or 'SAME'; 'CONFLICT'; or 'FULL', which bound, how many there are, the bound
-- Cost: O(1); of a repeat O(turns waiting in the session)
-- include dispatch
-- include put
local known = redis.call('HGET', KEYS[8], 'digest')
if known == ARGV[9] then
  if redis.call('HGET', KEYS[8], 'status') == 'queued' then
    put_again(KEYS[9])
  end
  return {'SAME'}
end
if known then
  return {'CONFLICT'}
end
local refusal = no_room(KEYS[9])
if refusal then
  return refusal
end
put(KEYS[8], KEYS[9], 12)
return {'NEW'}
