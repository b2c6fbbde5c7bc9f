package history_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// attempts makes n attempts as a busy replica makes them: 10,000 a second, each of a job of its own, two in a hundred failed.
func attempts(n int, from time.Time) []history.Entry {
	random := rand.New(rand.NewPCG(1, uint64(from.UnixMilli())))
	all := make([]history.Entry, n)
	for i := range all {
		sent := from.Add(time.Duration(i) * 100 * time.Microsecond)
		instant := sent.Add(-time.Duration(random.IntN(20)) * time.Millisecond).Truncate(time.Millisecond)
		name := job.Name{Tenant: "acme", Key: fmt.Sprintf("order-%08d", random.IntN(100_000_000))}
		e := history.Entry{
			Name: name, At: sent.Truncate(time.Millisecond), Instant: instant, Attempt: 1,
			Claimed:     sent.Truncate(time.Millisecond).Add(-time.Duration(random.IntN(3)) * time.Millisecond),
			Took:        time.Duration(3+random.IntN(60)) * 100 * time.Microsecond,
			Destination: fmt.Sprintf("http shop-%d.example.com", random.IntN(20)), Replica: "EYK4IGJ3ZKJ7GYLF2NDDWBVGOW",
		}
		switch random.IntN(100) {
		case 0:
			e.Kind, e.Status, e.Next = history.Retried, 503, e.At.Add(time.Duration(9+random.IntN(3))*time.Second)
		case 1:
			e.Kind, e.Error = history.Buried, "connect: connection refused"
		}
		all[i] = e
	}
	return all
}

// variety has entries with every field, and the extremes of each.
func variety() []history.Entry {
	name := job.Name{Tenant: "default", Key: "grüße/100%"}
	other := job.Name{Tenant: "a", Key: "k"}
	at := epoch.Add(time.Hour)
	return []history.Entry{
		{Name: name, At: at, Instant: epoch, Attempt: 1, Claimed: at},
		{
			Name: name, Kind: history.Retried, At: at, Instant: epoch, Position: 7, Subscriber: "bob", Attempt: 3,
			Claimed: at.Add(-time.Second), Took: 30 * time.Second, Destination: "rabbitmq orders", Status: 503,
			Next: at.Add(24 * time.Hour), Replica: "r1", Trace: [16]byte{1, 2, 15: 9},
		},
		{
			Name: name, Kind: history.Buried, At: at.Add(1), Instant: at.Add(time.Hour), Attempt: 1,
			Claimed: at.Add(time.Second), Error: "no host", Next: at,
		},
		{Name: other, Kind: history.Missed, At: at.AddDate(20, 0, 0), Instant: epoch.AddDate(-50, 0, 0), Claimed: at},
		{Name: other, Kind: history.Created, At: at, By: "key-1", Request: "01JQ0000000000000000000000"},
		{Name: other, Kind: history.Replaced, At: at.Add(-time.Hour), Request: "my request", From: job.NewRevision(epoch), Fields: []string{"/schedule", "/callback"}},
		{Name: other, Kind: history.Redriven, At: at, Instant: epoch, Position: 1<<31 - 1},
		{Name: job.Name{Tenant: "a", Key: "ka"}, Kind: history.Cancelled, At: at},
	}
}
