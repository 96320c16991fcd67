-- End a turn by what the receipt on its tape says, and dispatch the next of the session: one step.
-- KEYS: 8 turn, 9 receipt of the session
-- ARGV: 8 full id, 9 stream id of the receipt, 10 its digest ('' if the tape was reset since), 11 status, 12 result (JSON),
--       13 TTL of an ended turn (ms), 14 most crashes: one that failed with as many is dead, 15 TTL of a dead turn (ms),
--       then the full ids of the steering messages used
-- Returns: 'FINISHED', also when it was before; or 'GONE'
-- Cost: O(turns waiting in the session)
-- include dispatch
local status = redis.call('HGET', KEYS[8], 'status')
local function order(id)
  local ms, number = string.match(id or '', '^(%d+)-(%d+)$')
  return tonumber(ms or 0), tonumber(number or 0)
end

-- Only forward: a late finish of an older turn is not the session's last receipt.
local ms, number = order(ARGV[9])
local known_ms, known_number = order(redis.call('HGET', KEYS[9], 'id') or '')
if ARGV[10] ~= '' and (ms > known_ms or (ms == known_ms and number > known_number)) then
  redis.call('HSET', KEYS[9], 'id', ARGV[9], 'digest', ARGV[10])
end
if not status then
  if redis.call('LREM', queue_of(ARGV[8]), 1, ARGV[8]) == 1 then
    count_one_less()
  end
  ensure_head(queue_of(ARGV[8]), now_ms())
  return {'GONE'}
end
if not is_open(status) then
  return {'FINISHED'}
end
if status == 'running' and redis.call('HGET', KEYS[8], 'charged') == '1' then
  redis.call('HINCRBY', KEYS[8], 'crashes', -1)
end
local content
if ARGV[11] == 'failed' and tonumber(redis.call('HGET', KEYS[8], 'crashes')) >= tonumber(ARGV[14]) then
  -- Kept for a retry by hand.
  content = redis.call('HMGET', KEYS[8], 'prompt', 'options', 'state', 'metadata')
end
redis.call('HSET', KEYS[8], 'receipt', ARGV[9], 'result', ARGV[12])
local used = {}
for place = 16, #ARGV do
  used[ARGV[place]] = true
end
close(ARGV[8], now_ms(), ARGV[11], used, ARGV[13])
if content then
  for place, field in ipairs({'prompt', 'options', 'state', 'metadata'}) do
    if content[place] then
      redis.call('HSET', KEYS[8], field, content[place])
    end
  end
  redis.call('PEXPIRE', KEYS[8], ARGV[15])
  redis.call('ZADD', KEYS[6], text(now_ms()), ARGV[8])
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', text(now_ms() - ARGV[15]))
end
return {'FINISHED'}
