-- End a turn by what the receipt on its tape says, and dispatch the next of the session: one step.
-- KEYS: 6 turn, 7 queue of the session, 8 receipt of the session
-- ARGV: 7 full id, 8 stream id of the receipt, 9 its digest, 10 status, 11 result (JSON), 12 TTL of an ended turn (ms)
-- Returns: 'FINISHED', also when it was before; or 'GONE'
-- Cost: O(turns waiting in the session)
-- include dispatch
local status = redis.call('HGET', KEYS[6], 'status')
local ended = status and status ~= 'queued' and status ~= 'running'
if status and not ended then
  if status == 'running' then
    redis.call('HINCRBY', KEYS[6], 'crashes', -1)
  end
  withdraw(ARGV[7])
  redis.call('HSET', KEYS[6], 'status', ARGV[10], 'ended_ms', text(now_ms()), 'receipt', ARGV[8], 'result', ARGV[11])
  redis.call('HDEL', KEYS[6], 'prompt', 'options', 'state', 'body', 'overdue')
  redis.call('PEXPIRE', KEYS[6], ARGV[12])
end
redis.call('HSET', KEYS[8], 'id', ARGV[8], 'digest', ARGV[9])
redis.call('LREM', KEYS[7], 1, ARGV[7])
ensure_head(KEYS[7], now_ms())
return {status and 'FINISHED' or 'GONE'}
