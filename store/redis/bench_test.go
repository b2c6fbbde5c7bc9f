//go:build services

package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

// benchmarked are the kinds of stores that the benchmarks use, on a server that syncs its log once in a second.
var benchmarked = []struct{ name, options string }{{"1 shard", ""}, {"16 shards", "?shards=16"}}

// BenchmarkPut puts jobs of one instant, 500 at a time. One operation is 500 jobs.
func BenchmarkPut(b *testing.B) {
	for _, c := range benchmarked {
		b.Run(c.name, func(b *testing.B) {
			server := newServer(b, "--appendonly", "yes")
			s := open(b, server.url+c.options)
			before := busy(server)
			for i := 0; b.Loop(); i += 500 {
				var puts []store.Put
				for k := range 500 {
					puts = append(puts, put(fmt.Sprint(i+k), 1))
				}
				mustPut(b, s, puts...)
			}
			b.ReportMetric(float64(b.N)*500/b.Elapsed().Seconds(), "jobs/s")
			reportBusy(b, server, before, 500*b.N)
		})
	}
}

// busy returns the processor time of the server, and of this process.
func busy(server *server) (of [2]time.Duration) {
	server.t.Helper()
	info, err := server.direct.Info(server.t.Context(), "cpu").Result()
	if err != nil {
		server.t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			if err != nil {
				server.t.Fatal(err)
			}
			of[0] += time.Duration(seconds * float64(time.Second))
		}
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		server.t.Fatal(err)
	}
	of[1] = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return of
}

// reportBusy reports the processor time used since before, for each of n items, so that runs can be compared on a
// machine with other load.
func reportBusy(b *testing.B, server *server, before [2]time.Duration, n int) {
	now := busy(server)
	for i, of := range []string{"server-ns/each", "own-ns/each"} {
		b.ReportMetric(float64(now[i]-before[i])/float64(n), of)
	}
}

const backlog = 100_000

// BenchmarkDeliver claims and acknowledges a backlog of jobs of one instant, 256 at a time.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range benchmarked {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				server := newServer(b, "--appendonly", "yes")
				s := open(b, server.url+c.options)
				for i := 0; i < backlog; i += 1000 {
					var puts []store.Put
					for k := range 1000 {
						puts = append(puts, put(fmt.Sprint(i+k), 1))
					}
					mustPut(b, s, puts...)
				}
				b.StartTimer()
				before := busy(server)
				for left := backlog; left > 0; {
					claimed := claim(b, s, epoch, 256)
					if err := s.Settle(b.Context(), acks(claimed.Occurrences)); err != nil {
						b.Fatal(err)
					}
					left -= len(claimed.Occurrences)
				}
				reportBusy(b, server, before, backlog)
			}
			b.ReportMetric(backlog*float64(b.N)/b.Elapsed().Seconds(), "occurrences/s")
		})
	}
}

// BenchmarkBare measures the minimum work of a queue in Redis: one script claims 256 entries of a sorted set and reads
// a hash, another deletes them.
func BenchmarkBare(b *testing.B) {
	claim := goredis.NewScript(`local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 256)
		local moved = {}
		for i, id in ipairs(ids) do moved[2 * i - 1], moved[2 * i] = ARGV[2], id end
		if #ids > 0 then redis.call('ZADD', KEYS[1], unpack(moved)) end
		return {ids, #ids > 0 and redis.call('HMGET', KEYS[2], unpack(ids)) or {}}`)
	ack := goredis.NewScript(`redis.call('ZREM', KEYS[1], unpack(ARGV)) return redis.call('HDEL', KEYS[2], unpack(ARGV))`)
	keys := []string{"{0}:pending", "{0}:occurrences"}
	for b.Loop() {
		b.StopTimer()
		c := newServer(b, "--appendonly", "yes").direct
		for i := 0; i < backlog; i += 1000 {
			pipe := c.Pipeline()
			for k := range 1000 {
				id := put(fmt.Sprint(i+k), 1).Occurrences[0].ID.String()
				pipe.ZAdd(b.Context(), keys[0], goredis.Z{Score: float64(epoch.UnixMilli()), Member: id})
				pipe.HSet(b.Context(), keys[1], id, `http {"payload":1}`)
			}
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		for left := backlog; left > 0; {
			answer, err := claim.Run(b.Context(), c, keys, epoch.UnixMilli(), epoch.Add(time.Minute).UnixMilli()).Slice()
			if err != nil {
				b.Fatal(err)
			}
			ids, _ := answer[0].([]any)
			if err := ack.Run(b.Context(), c, keys, ids...).Err(); err != nil {
				b.Fatal(err)
			}
			left -= len(ids)
		}
	}
	b.ReportMetric(backlog*float64(b.N)/b.Elapsed().Seconds(), "occurrences/s")
}
