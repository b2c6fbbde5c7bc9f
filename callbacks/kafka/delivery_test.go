package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// An acknowledgement that was lost costs neither an attempt nor a duplicate, if the next try gets one.
func TestLostAcknowledgement(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	written := c.fault(kmsg.Produce, inbox, kerr.NotEnoughReplicasAfterAppend) // the client gets an error
	defer written.Remove()
	d := delivery(data(`"partition":0`))
	result := make(chan error, 1)
	go func() { result <- sender.Send(ctx, d) }()
	if err := written.Wait(ctx, 2); err != nil {
		t.Fatal(err)
	}
	written.Remove()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	next := delivery(data(`"partition":0`))
	if err := deliver(ctx, sender, next); err != nil {
		t.Fatal(err)
	}
	if first, second := c.record(ctx, t, d.ID), c.record(ctx, t, next.ID); second.Offset != first.Offset+1 {
		t.Errorf("%d records lie between the offsets %d and %d", second.Offset-first.Offset-1, first.Offset, second.Offset)
	}
}

// A record that was not sent when its context ended is not sent any more, though the brokers be back a moment later.
func TestEndedContextSendsNothingLater(t *testing.T) {
	for name, key := range map[string]kmsg.Key{"before the record": kmsg.Metadata, "before the producer id": kmsg.InitProducerID, "at the record": kmsg.Produce} {
		t.Run(name, func(t *testing.T) {
			ctx, c := limited(t), newCluster(t)
			sender := c.sender()
			for { // until it is connected, and has done no more
				err := sender.Send(ctx, delivery(data(`"topic":"nowhere"`)))
				if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable {
					break
				}
			}
			first, mend := c.cut(key)
			const attempts = 20
			var late [attempts]callbacks.Delivery
			attempt, cancel := context.WithCancel(ctx)
			defer cancel()
			var all sync.WaitGroup
			for i := range late {
				late[i] = delivery(data(`"partition":0`))
				all.Go(func() {
					if sender.Send(attempt, late[i]) == nil {
						t.Error("an attempt succeeded")
					}
				})
			}
			<-first
			cancel()
			all.Wait()
			mend()
			for range 3 {
				d := delivery(data(`"partition":0`))
				if err := deliver(ctx, sender, d); err != nil {
					t.Fatal(err)
				}
				c.record(ctx, t, d.ID)
			}
			for _, d := range late {
				if c.has(d.ID) {
					t.Errorf("delivery %s came after all", d.ID)
				}
			}
		})
	}
}

// overslept is a context whose deadline has passed while its timer has not run yet: so it is for a moment in a process
// that was stopped.
type overslept struct {
	context.Context
	deadline time.Time
}

func (o overslept) Deadline() (time.Time, bool) { return o.deadline, true }

// A record is not written when its attempt is over by the clock, though its context has not ended yet. Those that are in
// time are written.
func TestStoppedProcessSendsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		left time.Duration // to the attempt
		sent bool
	}{
		"over":    {-time.Minute, false},
		"in time": {time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cluster := limited(t), newCluster(t)
			sender := cluster.sender()
			if err := deliver(ctx, sender, delivery(data(`"partition":0`))); err != nil {
				t.Fatal(err)
			}
			d := delivery(data(`"partition":0`))
			err := sender.Send(overslept{ctx, time.Now().Add(c.left)}, d)
			if failure, ok := errors.AsType[*callbacks.Failure](err); !c.sent && (!ok || !failure.Unavailable) {
				t.Errorf("Send = %v, want that it costs no attempt", err)
			} else if c.sent && err != nil {
				t.Errorf("Send = %v", err)
			}
			next := delivery(data(`"partition":0`))
			if err := deliver(ctx, sender, next); err != nil {
				t.Fatal(err)
			}
			cluster.record(ctx, t, next.ID)
			if sent := cluster.has(d.ID); sent != c.sent {
				t.Errorf("the record was sent: %t, want %t", sent, c.sent)
			}
		})
	}
}

// One record that is too large takes down the batch that it is in, but only its own attempt fails.
func TestTooLargeHarmsNobodyElse(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	var together atomic.Int32                                                                    // batches of more than one record that were refused
	c.kafka.ControlKey(kmsg.Produce.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's order
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				var batch kmsg.RecordBatch
				if batch.ReadFrom(p.Records) == nil && batch.NumRecords > 1 && len(p.Records) > largest {
					together.Add(1)
				}
			}
		}
		return nil, nil, false
	})
	for together.Load() == 0 { // until such a batch came about
		first, resume := c.hang()
		var all sync.WaitGroup
		send := func(size int, check func(err error)) {
			d := delivery(`{"topic":"` + inbox + `","partition":0,"payload":"` + strings.Repeat("x", size) + `"}`)
			all.Go(func() {
				err := deliver(ctx, sender, d)
				check(err)
				if err == nil {
					c.record(ctx, t, d.ID)
				}
			})
		}
		for range 100 {
			send(5_000, func(err error) {
				if err != nil {
					t.Errorf("a small one was charged: %v", err)
				}
			})
		}
		send(largest, func(err error) {
			if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Permanent {
				t.Errorf("the large one: %v", err)
			}
		})
		<-first
		resume()
		all.Wait()
		if t.Failed() || ctx.Err() != nil {
			t.FailNow()
		}
	}
}

// A topic that is deleted is a failure that shows, and one that is created again is written to, whatever was there
// before.
func TestTopicComesAndGoes(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender, admin := c.sender(), c.client()
	const topic = "comes.and.goes"
	toTopic := data(`"topic":"` + topic + `","partition":0`)
	create := func() {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Topics = append(req.Topics, kmsg.CreateTopicsRequestTopic{Topic: topic, NumPartitions: 1, ReplicationFactor: 1})
		if resp := ask[*kmsg.CreateTopicsResponse](ctx, t, admin, req); resp.Topics[0].ErrorCode != 0 {
			t.Fatal(kerr.ErrorForCode(resp.Topics[0].ErrorCode))
		}
	}
	for round := range 3 {
		for { // a topic that was missing a moment ago is not looked up again at once
			err := deliver(ctx, sender, delivery(toTopic))
			if err == nil {
				t.Fatalf("round %d: a record went to a topic that does not exist", round)
			}
			failure, classified := errors.AsType[*callbacks.Failure](err)
			if classified || !strings.Contains(err.Error(), topic) {
				t.Fatalf("round %d: %v %+v", round, err, failure)
			}
			if strings.Contains(err.Error(), "does not exist") {
				break
			}
		}
		create()
		for {
			err := deliver(ctx, sender, delivery(toTopic))
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		if got := end(ctx, t, c, topic, 0); got != 1 {
			t.Fatalf("round %d: the topic has %d records", round, got)
		}
		req := kmsg.NewPtrDeleteTopicsRequest()
		name := topic
		req.TopicNames, req.Topics = []string{topic}, []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
		if resp := ask[*kmsg.DeleteTopicsResponse](ctx, t, admin, req); resp.Topics[0].ErrorCode != 0 {
			t.Fatal(kerr.ErrorForCode(resp.Topics[0].ErrorCode))
		}
	}
	// Others are not harmed by the time that took.
	d := delivery(data(``))
	if err := deliver(ctx, sender, d); err != nil {
		t.Fatal(err)
	}
	c.record(ctx, t, d.ID)
}

// end returns the number of records that a partition of a topic has had.
func end(ctx context.Context, t *testing.T, c *cluster, topic string, number int32) int64 {
	t.Helper()
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Partition, partition.Timestamp = number, -1
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = append(req.Topics, kmsg.ListOffsetsRequestTopic{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{partition}})
	resp := ask[*kmsg.ListOffsetsResponse](ctx, t, c.client(), req)
	p := resp.Topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(p.ErrorCode))
	}
	return p.Offset
}

// A partition that was added to a topic is found.
func TestPartitionsAreAdded(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	d := delivery(data(`"partition":4`))
	if err := deliver(ctx, sender, d); err == nil || !strings.Contains(err.Error(), "no partition 4; it has 3") {
		t.Fatal(err)
	}
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.Topics = append(req.Topics, kmsg.CreatePartitionsRequestTopic{Topic: inbox, Count: 5})
	if resp := ask[*kmsg.CreatePartitionsResponse](ctx, t, c.client(), req); resp.Topics[0].ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(resp.Topics[0].ErrorCode))
	}
	for err := errors.New("not yet"); err != nil && ctx.Err() == nil; {
		err = deliver(ctx, sender, d)
	}
	if got := end(ctx, t, c, inbox, 4); got != 1 {
		t.Errorf("the partition has %d records", got)
	}
}

// A producer that the brokers refuse is a failure that shows, and works when they don't any more.
func TestProducerIsRefused(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.ClusterAuthorizationFailed, kerr.UnknownServerError} {
		t.Run(code.Message, func(t *testing.T) {
			ctx, c := limited(t), newCluster(t)
			sender := c.sender()
			refused := c.fault(kmsg.InitProducerID, "", code)
			for range 3 {
				err := deliver(ctx, sender, delivery(data(``)))
				if err == nil || !errors.Is(err, code) {
					t.Fatalf("Send = %v", err)
				}
			}
			refused.Remove()
			for deliver(ctx, sender, delivery(data(``))) != nil {
				if ctx.Err() != nil {
					t.Fatal("it never works again")
				}
			}
		})
	}
}

// Brokers that have forgotten the producer, or fenced it, cost neither an attempt nor a record.
func TestProducerIsForgotten(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch} {
		t.Run(code.Message, func(t *testing.T) {
			ctx, c := limited(t), newCluster(t)
			sender := c.sender()
			if err := deliver(ctx, sender, delivery(data(`"partition":0`))); err != nil {
				t.Fatal(err)
			}
			c.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: inbox, Err: code, Count: 1})
			for range 3 {
				d := delivery(data(`"partition":0`))
				if err := sender.Send(ctx, d); err != nil {
					t.Fatal(err)
				}
				c.record(ctx, t, d.ID)
			}
		})
	}
}

// A record that is never answered holds up its own attempt only. A leader that hangs does not tell that its partition has
// gone to another broker, so after such an attempt the sender asks who leads; else it asks every five minutes only.
func TestLeaderHangs(t *testing.T) {
	c := newCluster(t, kfake.NumBrokers(2))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(`"partition":0`))); err != nil {
		t.Fatal(err)
	}
	k, leader := c.kafka, c.kafka.LeaderFor(inbox, 0)
	gate := make(chan struct{})
	defer close(gate)
	k.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's order
		k.KeepControl()
		if k.CurrentNode() == leader {
			k.SleepControl(func() { <-gate })
		}
		return nil, nil, false
	})
	if err := k.MoveTopicPartition(inbox, 0, 1-leader); err != nil {
		t.Fatal(err)
	}
	d := delivery(data(`"partition":0`))
	for sent := false; !sent; {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		sent = deliver(attempt, sender, d) == nil
		cancel()
		if ctx.Err() != nil {
			t.Fatal("no attempt reaches the new leader")
		}
	}
}

// Records keep coming while the cluster goes away; each arrives, and none is charged an attempt.
func TestOutages(t *testing.T) {
	for _, outage := range []struct {
		name   string
		happen func(c *cluster)
	}{
		{"stop and start", func(c *cluster) { c.kafka.Close(); c.kafka.Start() }},
		{"lost connections", func(c *cluster) {
			first, mend := c.cut(kmsg.Produce)
			<-first
			mend()
		}},
		{"leaders move", func(c *cluster) { c.kafka.ShufflePartitionLeaders() }},
	} {
		t.Run(outage.name, func(t *testing.T) {
			ctx, c := limited(t), newCluster(t)
			sender := c.sender()
			over := make(chan struct{})
			var all sync.WaitGroup
			var mu sync.Mutex
			var sent []job.ID
			underWay := make(chan struct{})
			for i := range 50 {
				all.Go(func() {
					for goesOn := true; goesOn; {
						select {
						case <-over:
							goesOn = false // and one more, which finds the cluster back
						default:
						}
						d := delivery(data(fmt.Sprintf(`"partition":%d`, i%3)))
						if err := deliver(ctx, sender, d); err != nil {
							t.Errorf("an attempt was charged or never succeeded: %v", err)
							return
						}
						mu.Lock()
						if sent = append(sent, d.ID); len(sent) == 100 {
							close(underWay)
						}
						mu.Unlock()
					}
				})
			}
			select {
			case <-underWay:
			case <-ctx.Done():
			}
			outage.happen(c)
			close(over)
			all.Wait()
			for _, id := range sent {
				c.record(ctx, t, id)
			}
		})
	}
}
