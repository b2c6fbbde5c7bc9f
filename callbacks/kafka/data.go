package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// callback is the callback data of a job.
type callback struct {
	Topic     string                    `json:"topic" validate:"required"`
	Key       *string                   `json:"key"`
	Partition *int64                    `json:"partition" validate:"omitnil,min=0,max=2147483647"`
	Headers   map[string]callbacks.Text `json:"headers"`
	Payload   jsontext.Value            `json:"payload"` // nil if there is none
}

// maxTopicBytes is Kafka's own bound.
const maxTopicBytes = 249

// validate checks callback data.
func validate(data []byte) error {
	_, err := callbacks.Parse[callback](data)
	return err
}

// Check implements [job.Checker].
func (c callback) Check(invalid *job.Invalid) {
	job.CheckTags(c, invalid)
	if c.Topic != "" && !validTopic(c.Topic) {
		invalid.Add("/topic", fmt.Sprintf("must be 1 to %d ASCII letters, digits, dots, underscores and hyphens, "+
			"and not only one or two dots", maxTopicBytes))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		switch {
		case name == "":
			invalid.Add(job.Pointer("headers", name), "must have a name")
		case strings.HasPrefix(strings.ToLower(name), "carillon-"):
			invalid.Add(job.Pointer("headers", name), "is set by Carillon; leave it out")
		default:
			c.Headers[name].Check(job.Pointer("headers", name), invalid)
		}
	}
}

func validTopic(name string) bool {
	if name == "" || len(name) > maxTopicBytes || name == "." || name == ".." {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// byKey is the partition of a record that goes to the one that its key is hashed to.
const byKey = -1

// partition returns the partition that the job names, or byKey.
func (c *callback) partition() int32 {
	if c.Partition == nil {
		return byKey
	}
	return int32(*c.Partition) //nolint:gosec // it was checked to be one
}

// newRecord makes the record of an attempt. Without a payload its value is null, as for a deletion from a compacted
// topic. The error is a [*callbacks.Failure]: a secret is missing.
func newRecord(ctx context.Context, s *Sender, c callback, d *callbacks.Delivery) (kgo.Record, error) {
	m := d.Message(c.Payload)
	r := kgo.Record{
		Topic:     c.Topic,
		Partition: c.partition(),
		Key:       []byte(d.Name.Key),
		Value:     m.Body,
		Timestamp: d.SentAt,
		Headers:   make([]kgo.RecordHeader, 0, len(c.Headers)+len(m.Attributes)+7),
	}
	if c.Key != nil {
		r.Key = []byte(*c.Key)
	}
	add := func(name, value string) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	add("carillon-id", d.ID.String())
	add("carillon-key", d.Name.Key)
	if d.Name.Tenant != job.DefaultTenant {
		add("carillon-tenant", d.Name.Tenant)
	}
	add("carillon-timestamp", job.FormatTime(d.Timestamp))
	add("carillon-attempt", strconv.Itoa(d.Attempt))
	if d.Part != nil {
		add("carillon-step", strconv.Itoa(d.Part.Step))
		if d.Part.Subscriber != "" {
			add("carillon-subscriber", d.Part.Subscriber)
		}
	}
	for _, h := range callbacks.TraceHeaders(d, c.Headers) {
		add(h.Name, h.Value)
	}
	for _, a := range m.Attributes {
		add("ce_"+a.Name, a.Value)
	}
	signature, err := d.SignatureHeaders(ctx, m.Body)
	if err != nil {
		return kgo.Record{}, err
	}
	for _, h := range signature {
		add(h.Name, h.Value)
	}
	ours := len(r.Headers)
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		value, _, err := d.Join(ctx, s, c.Headers[name])
		if err != nil {
			return kgo.Record{}, err
		}
		isType := strings.EqualFold(name, contentType)
		switch {
		case isType && d.Envelope == job.EnvelopeStructured: // it would be taken for something else
		case slices.ContainsFunc(r.Headers[:ours], func(h kgo.RecordHeader) bool { return h.Key == name }):
		case d.Envelope == job.EnvelopeBinary && name == "ce_datacontenttype": // the content type is it
		case isType:
			m.ContentType = value
		default:
			add(name, value)
		}
	}
	if m.ContentType != "" {
		add(contentType, m.ContentType)
	}
	return r, nil
}

const contentType = "content-type"

// partitioner sends records where their jobs ask for, and else where Kafka's own clients would, by the key.
func partitioner() kgo.Partitioner {
	keys := kgo.StickyKeyPartitioner(nil)
	return kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		byHash := keys.ForTopic(topic)
		return func(r *kgo.Record, n int) int {
			if r.Partition != byKey {
				return int(r.Partition)
			}
			return byHash.Partition(r, n) // each record has a key, if an empty one
		}
	})
}
