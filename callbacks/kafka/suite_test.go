package kafka_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.opentelemetry.io/otel/attribute"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/job"
)

func TestSuite(t *testing.T) {
	callbackstest.Run(t, func(t *testing.T) callbackstest.Harness {
		c := newCluster(t)
		plain, unavailable, permanent := callbacks.Failure{}, callbacks.Failure{Unavailable: true}, callbacks.Failure{Permanent: true}
		fault := func(key kmsg.Key, topic string, err *kerr.Error) func(*testing.T) func() {
			return func(*testing.T) func() { return c.fault(key, topic, err).Remove }
		}
		return callbackstest.Harness{
			Sender:     c.sender(),
			Data:       func(payload string) []byte { return []byte(`{"topic": "` + inbox + `", "payload": ` + payload + ` }`) },
			Await:      c.await,
			Attributes: c.attributes,
			Span: func(job.ID) []attribute.KeyValue {
				return []attribute.KeyValue{
					attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", inbox),
					attribute.String("messaging.operation.type", "send"), attribute.String("messaging.operation.name", "send"),
				}
			},
			Good:    good(),
			Bad:     bad(),
			Secrets: []string{password},
			Failures: []callbackstest.Failure{
				{Name: "no such topic", Data: []byte(data(`"topic":"nowhere"`)), Want: plain, Says: []string{`"nowhere" does not exist`}},
				{Name: "no such partition", Data: []byte(data(`"partition":3`)), Want: plain, Says: []string{inbox, "no partition 3; it has 3"}},
				{
					Name: "a topic that may not be seen", Data: []byte(data(`"topic":"hidden"`)), Want: plain, Says: []string{"hidden", "AUTHORIZATION"},
					Begin: fault(kmsg.Metadata, "hidden", kerr.TopicAuthorizationFailed),
				},
				{
					Name: "a topic that may not be written to", Want: plain, Says: []string{inbox, "AUTHORIZATION"},
					Begin: fault(kmsg.Produce, inbox, kerr.TopicAuthorizationFailed),
				},
				{Name: "too few replicas", Want: plain, Says: []string{inbox, "REPLICAS"}, Begin: fault(kmsg.Produce, inbox, kerr.NotEnoughReplicas)},
				{
					Name: "too few replicas after it was written", Want: plain, Says: []string{inbox, "replicas"},
					Begin: fault(kmsg.Produce, inbox, kerr.NotEnoughReplicasAfterAppend),
				},
				{Name: "slow replicas", Want: plain, Says: []string{inbox, "replicas"}, Begin: fault(kmsg.Produce, inbox, kerr.RequestTimedOut)},
				{Name: "a record that is refused", Want: plain, Says: []string{inbox, "INVALID_RECORD"}, Begin: fault(kmsg.Produce, inbox, kerr.InvalidRecord)},
				{Name: "no leader", Want: unavailable, Says: []string{inbox, "leader"}, Begin: fault(kmsg.Produce, inbox, kerr.LeaderNotAvailable)},
				{
					Name: "larger than the brokers allow", Data: []byte(`{"topic":"` + inbox + `","payload":"` + strings.Repeat("x", largest) + `"}`),
					Want: permanent, Says: []string{inbox, "TOO_LARGE"},
				},
				{
					Name: "larger than anybody allows", Data: []byte(`{"topic":"` + inbox + `","payload":"` + strings.Repeat("x", 2<<20) + `"}`),
					Want: permanent, Says: []string{inbox, "TOO_LARGE"},
				},
				{Name: "lost connections", Want: unavailable, Begin: func(*testing.T) func() {
					_, mend := c.cut(kmsg.Produce)
					return mend
				}},
				{Name: "brokers stopped", Want: unavailable, Begin: func(*testing.T) func() {
					c.kafka.Close()
					return c.kafka.Start
				}},
			},
			Hang: func(t *testing.T) callbackstest.Hang {
				first, resume := c.hang()
				return callbackstest.Hang{Resume: resume, Held: func(job.ID) {
					select { // of the records for a partition only the first comes so far, the others wait for its acknowledgement
					case <-first:
					case <-t.Context().Done():
						t.Error("nothing came")
					}
				}}
			},
		}
	})
}

func good() map[string][]byte {
	return map[string][]byte{
		"nulls for defaults": []byte(`{"topic":"` + inbox + `","key":null,"partition":null,"headers":null,"payload":null}`),
		"empty key":          []byte(data(`"key":""`)),
		"first partition":    []byte(data(`"partition":0`)),
		"last partition":     []byte(data(`"partition":2`)),
		"header names":       []byte(data(`"headers":{"a b":"","ü":"世界","ce_type":"mine","CONTENT-TYPE":"text/plain","Carillon":"x"}`)),
		"large headers":      []byte(data(`"headers":{"a":"` + strings.Repeat("x", 100<<10) + `"}`)),
	}
}

func bad() []callbackstest.Bad {
	topic := func(name, topic string) callbackstest.Bad {
		return callbackstest.Bad{Name: "topic " + name, Data: `{"topic":"` + topic + `","payload":1}`, Pointers: []string{"/topic"}}
	}
	return []callbackstest.Bad{
		{Name: "no topic", Data: `{"payload":1}`, Pointers: []string{"/topic"}},
		topic("empty", ""), topic("dot", "."), topic("dots", ".."), topic("space", "a b"), topic("slash", "a/b"), topic("not ASCII", "ü"),
		topic("long", strings.Repeat("x", 250)),
		{Name: "topic is a number", Data: `{"topic":1}`, Pointers: []string{"/topic"}},
		{Name: "other case", Data: data(`"Key":"a"`), Pointers: []string{"/Key"}},
		{Name: "key is a number", Data: data(`"key":1`), Pointers: []string{"/key"}},
		{Name: "negative partition", Data: data(`"partition":-1`), Pointers: []string{"/partition"}},
		{Name: "large partition", Data: data(`"partition":2147483648`), Pointers: []string{"/partition"}},
		{Name: "partition is a fraction", Data: data(`"partition":1.5`), Pointers: []string{"/partition"}},
		{Name: "header is a number", Data: data(`"headers":{"a":1}`), Pointers: []string{"/headers/a"}},
		{Name: "header without a name", Data: data(`"headers":{"":"x"}`), Pointers: []string{"/headers/"}},
		{Name: "our header", Data: data(`"headers":{"carillon-key":"x"}`), Pointers: []string{"/headers/carillon-key"}},
		{Name: "our header, other case", Data: data(`"headers":{"Carillon-Any/thing":"x"}`), Pointers: []string{"/headers/Carillon-Any~1thing"}},
		{
			Name: "everything", Data: `{"topic":"a b","partition":-1,"headers":{"carillon-b":"","carillon-a":""}}`,
			Pointers: []string{"/partition", "/topic", "/headers/carillon-a", "/headers/carillon-b"},
		},
	}
}
