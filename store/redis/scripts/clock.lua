#!lua flags=no-writes,allow-oom
-- Returns the time of the server that has the shard, in seconds and microseconds.
return redis.call('TIME')
