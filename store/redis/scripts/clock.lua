#!lua flags=no-writes,allow-oom
-- Answers the time of the server that has the shard, in seconds and microseconds.
return redis.call('TIME')
