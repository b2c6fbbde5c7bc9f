// Package kafka takes submissions from a topic of Kafka, as a member of a consumer group.
//
// The offsets of records are committed when the store has their jobs. Records that are not committed when this process
// ends, or when their partition is assigned to another member, come again; they have no second effect. Records of one
// partition are applied in order. docs/queues.md describes the records.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/intake"
)

// Config sets up a [Source].
type Config struct {
	// Options are the options of a client's connection.
	Options []kgo.Opt
	// Topic must exist; Group is the consumer group.
	Topic, Group string
	// MayReply reports whether problems may be sent to a topic.
	MayReply func(topic string) bool
	// Door takes the messages.
	Door *intake.Door
	// Records is the maximum number of records that are stored at once; zero means [intake.GroupMessages].
	Records int
}

// DeadLetters returns the name of the topic for records that are refused. If there is none, it is made, if this client
// may do that.
func DeadLetters(topic string) string { return topic + ".dead-letters" }

// Source consumes one topic.
type Source struct{ Config }

var _ intake.Source = (*Source)(nil)

// New makes a source.
func New(c Config) *Source {
	if c.Records == 0 {
		c.Records = intake.GroupMessages
	}
	return &Source{c}
}

// Run implements [intake.Source].
func (s *Source) Run(ctx context.Context) { s.Door.Again(ctx, s.serve) }

// Limits of waiting.
const (
	// idleLimit is for records. The group can't change meanwhile.
	idleLimit = time.Second
	// answerLimit is for the answers of the cluster.
	answerLimit = 30 * time.Second
	// memberLimit is for commits, and the time after which the group gives up a member that is silent.
	memberLimit = 15 * time.Second
)

// serve consumes by one client, until it fails or ctx ends. The next client begins at the committed offsets.
func (s *Source) serve(ctx context.Context) error {
	fresh := &repeats{reach: int64(s.Records), first: make(map[int32]int64)}
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.ConsumerGroup(s.Group), kgo.ConsumeTopics(s.Topic), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(memberLimit), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxBytes(intake.GroupBytes),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			fresh.assigned(assigned[s.Topic])
		}),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerLinger(0),
		kgo.RecordDeliveryTimeout(answerLimit),
	}, s.Options...)...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	if err := ping(ctx, client); err != nil {
		return err
	}
	s.makeDeadLetters(ctx, client)
	s.Door.Logger.Info("submissions are taken from a topic", "source", s.Door.Source, "brokers", s.Door.Address)
	s.Door.Consuming(nil)
	up := true
	for ctx.Err() == nil {
		records, err := s.poll(ctx, client)
		if (err == nil) != up {
			up = err == nil
			s.Door.Consuming(err)
			s.Door.Logger.Info("the cluster can be reached, or no longer", "source", s.Door.Source, "error", err)
		}
		if len(records) > 0 {
			if err := s.apply(ctx, client, records, fresh); err != nil {
				return err
			}
		}
		client.AllowRebalance()
	}
	return ctx.Err()
}

// ping asks whether the cluster is there. The client itself would try for ever, and say nothing.
func ping(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	return client.Ping(ctx)
}

// poll waits for records. It returns none if there are none for a while. After an error the client tries again by
// itself, and stays a member of its group.
func (s *Source) poll(ctx context.Context, client *kgo.Client) ([]*kgo.Record, error) {
	limited, cancel := context.WithTimeout(ctx, idleLimit)
	defer cancel()
	fetches := client.PollRecords(limited, s.Records)
	records := fetches.Records()
	if len(records) > 0 || ctx.Err() != nil {
		return records, ctx.Err()
	}
	if err := ping(ctx, client); err != nil {
		_ = intake.Sleep(ctx, time.Second) // the loop ends with ctx
		return nil, err
	}
	for _, f := range fetches.Errors() {
		if !errors.Is(f.Err, context.DeadlineExceeded) {
			return nil, f.Err
		}
	}
	return nil, nil
}

// apply has records applied, puts aside those that are refused, and commits the offsets of all that are done.
func (s *Source) apply(ctx context.Context, client *kgo.Client, records []*kgo.Record, fresh *repeats) error {
	messages := make([]intake.Message, len(records))
	for i, r := range records {
		messages[i] = messageOf(r)
		messages[i].Repeated = fresh.has(r)
	}
	hold := func(ctx context.Context) error { return s.hold(ctx, client, records) }
	answers, failed := s.Door.Apply(ctx, hold, messages)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), memberLimit)
	defer cancel()
	for i, a := range answers {
		if a.Refused == nil {
			continue
		}
		s.Door.Logger.Debug("a record was refused", "source", s.Door.Source, "problem", string(a.Refused.Encode()))
		if err := s.putAside(limit, client, records[i], a.Refused); err != nil {
			return fmt.Errorf("refused records can't be put aside: %w", err)
		}
	}
	if len(answers) > 0 {
		err := s.insist(limit, func() error { return client.CommitRecords(limit, records[:len(answers)]...) })
		if err != nil {
			return err
		}
	}
	return failed
}

// insist commits until the cluster has answered, or ctx ends. A new client would be another member, and would get its
// partitions only when the group gives up this one.
func (s *Source) insist(ctx context.Context, commit func() error) error {
	for up := true; ; up = false {
		err := commit()
		if _, answered := errors.AsType[*kerr.Error](err); err == nil || answered {
			if !up {
				s.Door.Consuming(err)
			}
			return err
		}
		s.Door.Consuming(err)
		if intake.Sleep(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
}

// hold commits the offsets at which records begin, which changes nothing: the cluster accepts that only while the
// partitions are this member's.
func (s *Source) hold(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	begin := make(map[int32]kgo.EpochOffset)
	for _, r := range records {
		if _, known := begin[r.Partition]; !known {
			begin[r.Partition] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, memberLimit)
	defer cancel()
	var err error
	done := func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, failed error) {
		if err = failed; failed != nil {
			return
		}
		for _, t := range answer.Topics {
			for _, p := range t.Partitions {
				err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	}
	return s.insist(ctx, func() error {
		client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{s.Topic: begin}, done)
		return err
	})
}

// makeDeadLetters makes the topic of dead letters, unless it exists. Without it, records that are refused wait.
func (s *Source) makeDeadLetters(ctx context.Context, client *kgo.Client) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = DeadLetters(s.Topic), -1, -1 // the cluster's defaults
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(ctx, client)
	if err == nil {
		for _, t := range answer.Topics {
			err = errors.Join(err, kerr.ErrorForCode(t.ErrorCode))
		}
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		s.Door.Logger.Info("the topic of dead letters can't be made", "topic", topic.Topic, "error", err)
	}
}

// The headers of records.
const (
	replyHeader       = "reply-to"
	correlationHeader = "correlation-id"
	originHeader      = "carillon-origin"
)

// putAside produces a refused record to the topic of dead letters, and its problem to the topic that it names.
func (s *Source) putAside(ctx context.Context, client *kgo.Client, r *kgo.Record, why *intake.Problem) error {
	dead := &kgo.Record{
		Topic: DeadLetters(s.Topic), Key: r.Key, Value: r.Value, Headers: append(r.Headers[:len(r.Headers):len(r.Headers)],
			kgo.RecordHeader{Key: intake.ProblemHeader, Value: []byte(why.Header())},
			kgo.RecordHeader{Key: originHeader, Value: fmt.Appendf(nil, "%s/%d/%d", r.Topic, r.Partition, r.Offset)}),
	}
	err := client.ProduceSync(ctx, dead).FirstErr()
	if errors.Is(err, kerr.MessageTooLarge) { // by the added headers, which name the place of the original record
		dead = &kgo.Record{Topic: dead.Topic, Key: dead.Key, Headers: dead.Headers[len(r.Headers):]}
		err = client.ProduceSync(ctx, dead).FirstErr()
	}
	if err != nil {
		return err
	}
	headers := headersOf(r)
	to := headers[replyHeader]
	if to == "" || !s.MayReply(to) {
		return nil
	}
	reply := &kgo.Record{Topic: to, Key: r.Key, Value: why.Encode(), Headers: []kgo.RecordHeader{
		{Key: "content-type", Value: []byte(intake.ProblemMedia)},
	}}
	if id := headers[correlationHeader]; id != "" {
		reply.Headers = append(reply.Headers, kgo.RecordHeader{Key: correlationHeader, Value: []byte(id)})
	}
	client.Produce(context.WithoutCancel(ctx), reply, nil) // the topic may not exist, and no client may wait for the reply
	return nil
}

// messageOf returns the message of a record.
func messageOf(r *kgo.Record) intake.Message {
	m := intake.Message{
		Body: r.Value, Key: string(r.Key), Published: r.Timestamp, Headers: headersOf(r),
		Identity: fmt.Sprint(r.Partition, r.Offset),
	}
	m.ContentType, m.ContentEncoding = m.Headers["content-type"], m.Headers["content-encoding"]
	return m
}

// headersOf returns the headers of a record by their names in lower case; nil if it has none.
func headersOf(r *kgo.Record) map[string]string {
	if len(r.Headers) == 0 {
		return nil
	}
	all := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		all[strings.ToLower(h.Key)] = string(h.Value)
	}
	return all
}

// repeats finds records that may have been applied before: the first ones of a partition that was assigned to this
// member, as many as are applied before a commit.
type repeats struct {
	reach int64

	mu    sync.Mutex
	first map[int32]int64 // the first offset by partition; -1 if it is not known yet
}

func (r *repeats) assigned(partitions []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range partitions {
		r.first[p] = -1
	}
}

// has reports whether a record may have been applied before.
func (r *repeats) has(record *kgo.Record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.first[record.Partition]
	if !known || first < 0 {
		first = record.Offset
		r.first[record.Partition] = first
	}
	return record.Offset < first+r.reach
}
