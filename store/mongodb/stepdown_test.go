//go:build services && mongod

package mongodb_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestStepdown: the primary steps down again and again while two replicas claim and put new jobs. Each acknowledged
// instant is claimed by exactly one claim that was answered. None waits for a lease to end, which would take longer
// than the test.
func TestStepdown(t *testing.T) {
	const (
		stepdowns = 4
		jobs      = 100
		each      = 8
	)
	db := newDatabase(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var mu sync.Mutex
	claimed := make(map[job.ID]int)
	all, over := make(chan struct{}), make(chan struct{})
	var replicas, others sync.WaitGroup
	for range 2 {
		s := db.open(t)
		replicas.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				params := claimParams(time.Now().Truncate(time.Millisecond), 5)
				params.Lease = time.Hour
				claim, err := s.Claim(ctx, params)
				if err != nil {
					t.Logf("claim: %v", err)
					continue
				}
				var settlements []store.Settlement
				mu.Lock()
				for _, c := range claim.Occurrences {
					claimed[c.ID]++
					settlements = append(settlements, settlement(c, store.Ack))
				}
				if len(claimed) == jobs*each {
					select {
					case <-all:
					default:
						close(all)
					}
				}
				mu.Unlock()
				for len(settlements) > 0 && s.Settle(ctx, settlements) != nil && ctx.Err() == nil {
					t.Log("settling once more")
				}
				if len(claim.Occurrences) == 0 {
					time.Sleep(5 * time.Millisecond) // as a replica waits between two claims
				}
			}
		})
	}

	putter := db.open(t)
	others.Go(func() {
		for range jobs {
			put := newPut("k", time.Now().Truncate(time.Millisecond))
			put.Job.Key = "k" + job.NewToken()
			for i := range each {
				put.Job.Schedule.Instants = append(put.Job.Schedule.Instants, put.Now.Add(time.Duration(i)*50*time.Millisecond))
			}
			put = begin(put.Job, put.Now)
			put.If = store.Condition{Absent: true}
			for ctx.Err() == nil {
				// A put whose answer was lost may have taken effect; the next one then fails by its condition.
				if err := putter.Put(ctx, []store.Put{put})[0].Err; err == nil {
					break
				} else if _, missing := store.ReadJob(ctx, putter, put.Job.Name); missing == nil {
					break
				} else {
					t.Logf("put: %v", err)
				}
			}
			time.Sleep(100 * time.Millisecond) // so that the primary steps down while some are put
		}
	})
	others.Go(func() {
		for range stepdowns {
			time.Sleep(2 * time.Second)
			stepDown(ctx, t, db)
		}
	})

	others.Wait()
	select {
	case <-all:
	case <-ctx.Done():
	}
	close(over)
	replicas.Wait()
	for id, n := range claimed {
		if n != 1 {
			t.Errorf("%s was claimed %d times", id, n)
		}
	}
	if len(claimed) != jobs*each {
		t.Errorf("%d were claimed, want %d", len(claimed), jobs*each)
	}
	if n := db.count(t, bson.M{}); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// stepDown makes the primary step down, and waits until there is another one.
func stepDown(ctx context.Context, t *testing.T, db database) {
	before := db.primary(t)
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + before + "/?directConnection=true"))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = client.Disconnect(ctx) }()
	// The server may close the connection instead of answering.
	err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepDown", Value: 10}, {Key: "secondaryCatchUpPeriodSecs", Value: 5}}).Err()
	t.Logf("%s steps down: %v", before, err)
	for ctx.Err() == nil {
		var hello struct{ Primary string }
		if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err == nil &&
			hello.Primary != "" && hello.Primary != before {
			t.Logf("the primary is %s", hello.Primary)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("there is no other primary")
}
