package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
)

// rawRedis is Redis' bare client. It has keys of its own, like those of one of the store's shards: hashes with the data
// of jobs and occurrences, and sorted sets to find them.
type rawRedis struct {
	client redis.UniversalClient
}

// The keys, all in one slot of a Redis Cluster.
const (
	rawRedisJobs        = "{carillon-bench-raw}:jobs" // a job's state, by its name
	rawRedisTargets     = "{carillon-bench-raw}:targets"
	rawRedisSchedules   = "{carillon-bench-raw}:schedules"
	rawRedisNames       = "{carillon-bench-raw}:names"
	rawRedisExpiry      = "{carillon-bench-raw}:expiry"
	rawRedisOccurrences = "{carillon-bench-raw}:occurrences" // an occurrence's record, by its id
	rawRedisAttempts    = "{carillon-bench-raw}:attempts"    // the number, time and token of its last claim
	rawRedisPending     = "{carillon-bench-raw}:pending"     // by due time
	rawRedisMembers     = "{carillon-bench-raw}:members"     // by revision and id
)

// rawRedisTaken are the keys of the scripts.
var rawRedisTaken = []string{rawRedisPending, rawRedisOccurrences, rawRedisAttempts, rawRedisMembers}

// rawRedisClaim takes due occurrences: it pushes each one's due time ahead and stores the claim.
// ARGV: now, the new due time, the maximum number, the text of the claim. Result: their entries among the members.
var rawRedisClaim = redis.NewScript(`
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if #ids == 0 then return ids end
local due, attempts, entries = {}, {}, {}
local records = redis.call('HMGET', KEYS[2], unpack(ids))
for i, id in ipairs(ids) do
	due[2 * i - 1], due[2 * i] = ARGV[2], id
	attempts[2 * i - 1], attempts[2 * i] = id, ARGV[4]
	entries[i] = string.sub(records[i], 1, 26) .. ':' .. id
end
redis.call('ZADD', KEYS[1], unpack(due))
redis.call('HSET', KEYS[3], unpack(attempts))
return entries`)

// rawRedisDelete deletes the occurrences that still have the claim.
// ARGV: the text of the claim, the occurrences' entries among the members. Result: the number of deleted occurrences.
var rawRedisDelete = redis.NewScript(`
local ids = {}
for i = 2, #ARGV do ids[i - 1] = string.sub(ARGV[i], -26) end
local gone, entries = {}, {}
for i, noted in ipairs(redis.call('HMGET', KEYS[3], unpack(ids))) do
	if noted == ARGV[1] then
		gone[#gone + 1] = ids[i]
		entries[#entries + 1] = ARGV[i + 1]
	end
end
if #gone > 0 then
	redis.call('ZREM', KEYS[1], unpack(gone))
	redis.call('HDEL', KEYS[2], unpack(gone))
	redis.call('HDEL', KEYS[3], unpack(gone))
	redis.call('ZREM', KEYS[4], unpack(entries))
end
return #gone`)

func openRawRedis(_ context.Context, rawURL string) (*rawRedis, error) {
	plain, query, _ := strings.Cut(rawURL, "?") // the options are for the store
	first, others, several := strings.Cut(plain, ",")
	o, err := redis.ParseURL(first + "/0")
	if !several {
		o, err = redis.ParseURL(plain)
	}
	if err != nil {
		return nil, err
	}
	if !strings.Contains(query, "cluster=true") {
		return &rawRedis{redis.NewClient(o)}, nil
	}
	hosts := []string{o.Addr}
	if several {
		hosts = append(hosts, strings.Split(strings.TrimSuffix(others, "/"), ",")...)
	}
	return &rawRedis{redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: hosts, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig})}, nil
}

// Upsert sends one command for each key, all in one pipeline.
func (r *rawRedis) Upsert(ctx context.Context, rows []rawRow) error {
	var states, targets, schedules, records []string
	var names, expiry, pending, members []redis.Z
	for i := range rows {
		row := &rows[i]
		name, id := job.DefaultTenant+"\x00"+row.key, row.id.String()
		states = append(states, name, fmt.Sprintf("%s 0 0 %s %d %d %d 0  0 discard", row.revision, row.revision, row.now,
			row.now, row.expires))
		targets = append(targets, name, "discard\x00\x00"+string(row.data))
		schedules = append(schedules, name, string(row.schedule))
		records = append(records, id, fmt.Sprintf("%s %s\x00%d 0 - ", row.revision, name, row.at))
		names = append(names, redis.Z{Member: name})
		expiry = append(expiry, redis.Z{Score: float64(row.expires), Member: name})
		pending = append(pending, redis.Z{Score: float64(row.at), Member: id})
		members = append(members, redis.Z{Member: row.revision + ":" + id})
	}
	pipe := r.client.Pipeline()
	pipe.HSet(ctx, rawRedisJobs, states)
	pipe.HSet(ctx, rawRedisTargets, targets)
	pipe.HSet(ctx, rawRedisSchedules, schedules)
	pipe.HSet(ctx, rawRedisOccurrences, records)
	pipe.ZAdd(ctx, rawRedisNames, names...)
	pipe.ZAdd(ctx, rawRedisExpiry, expiry...)
	pipe.ZAdd(ctx, rawRedisPending, pending...)
	pipe.ZAdd(ctx, rawRedisMembers, members...)
	_, err := pipe.Exec(ctx)
	return err
}

func (r *rawRedis) Take(ctx context.Context, c rawClaim) (int, error) {
	noted := fmt.Sprintf("1 %d %s", c.now, c.token)
	entries, err := rawRedisClaim.Run(ctx, r.client, rawRedisTaken, c.now, c.until, rawBatch, noted).Slice()
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	return rawRedisDelete.Run(ctx, r.client, rawRedisTaken, append([]any{noted}, entries...)...).Int()
}

func (r *rawRedis) Close(ctx context.Context) error {
	err := r.client.Unlink(ctx, append(rawRedisTaken, rawRedisJobs, rawRedisTargets, rawRedisSchedules, rawRedisNames,
		rawRedisExpiry)...).Err()
	return errors.Join(err, r.client.Close())
}
