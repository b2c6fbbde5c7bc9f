#!lua flags=allow-oom
-- Notes until when a replica may be claiming. What a full store has is delivered all the same, so this must not fail.
--
-- KEYS: 1 the store's key of its replicas
-- ARGV: 1 replica, 2 until when, or nothing if it has stopped
if ARGV[2] == '' then return redis.call('ZREM', KEYS[1], ARGV[1]) end
return redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
