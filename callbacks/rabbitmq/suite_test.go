//go:build services

package rabbitmq_test

import (
	"os"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

func TestSuite(t *testing.T) {
	callbackstest.Run(t, func(t *testing.T) callbackstest.Harness {
		b := newBroker(t)
		sender := newSender(t, rabbitmq.Options{})
		to := func(where string) []byte { return []byte(`{` + where + `,"payload":1}`) }
		plain := callbacks.Failure{}
		unavailable := callbacks.Failure{Unavailable: true}
		return callbackstest.Harness{
			Sender: sender,
			Data:   func(payload string) []byte { return []byte(`{"queue": "` + b.name + `", "payload": ` + payload + ` }`) },
			Await:  b.await,

			Attributes: b.attributes,
			Span: func(id job.ID) []attribute.KeyValue {
				uri, err := amqp.ParseURI(os.Getenv("CARILLON_TEST_RABBITMQ_URL"))
				if err != nil {
					t.Fatal(err)
				}
				return []attribute.KeyValue{
					attribute.String("messaging.system", "rabbitmq"), attribute.String("messaging.destination.name", b.name),
					attribute.String("messaging.operation.type", "send"), attribute.String("messaging.operation.name", "publish"),
					attribute.String("messaging.rabbitmq.destination.routing_key", b.name), attribute.String("messaging.message.id", id.String()),
					attribute.String("server.address", uri.Host), attribute.Int("server.port", uri.Port),
				}
			},

			Good: good(b.name, b.name),
			Bad:  bad(),
			Failures: []callbackstest.Failure{
				{Name: "no such queue", Data: to(`"queue":"carillon-nowhere"`), Want: plain, Says: []string{"carillon-nowhere", "NO_ROUTE"}},
				{Name: "no such exchange", Data: to(`"exchange":"carillon-nowhere","routingKey":"k"`), Want: plain, Says: []string{"carillon-nowhere"}},
				{
					Name: "no binding", Data: to(`"exchange":"amq.direct","routingKey":"carillon-nowhere"`), Want: plain,
					Says: []string{"amq.direct", "carillon-nowhere", "NO_ROUTE"},
				},
				{Name: "full queue", Data: to(`"queue":"` + b.name + `-full"`), Begin: b.fullQueue, Want: plain, Says: []string{"refused", b.name + "-full"}},
				{Name: "internal exchange", Data: to(`"exchange":"` + b.name + `-internal"`), Begin: b.internalExchange, Want: plain, Says: []string{"-internal"}},
				{Name: "broker stopped", Begin: outage("stop"), Want: unavailable},
				{Name: "broker killed", Begin: outage("kill"), Want: unavailable},
				{Name: "broker blocked", Begin: func(t *testing.T) func() { return b.block(t, sender) }, Want: unavailable, Says: []string{"low on memory"}},
			},
			Secrets: []string{"guest"}, // of the URL
			Hang: func(t *testing.T) callbackstest.Hang {
				return callbackstest.Hang{Held: func(job.ID) {}, Resume: b.block(t, sender)}
			},
		}
	})
}

func outage(verb string) func(t *testing.T) func() {
	return func(t *testing.T) func() {
		ctl(t, verb)
		return func() { ctl(t, "start") }
	}
}

// fullQueue makes a queue that refuses messages that it has no room for.
func (b *broker) fullQueue(*testing.T) (undo func()) {
	name := b.name + "-full"
	b.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-length": int64(0), "x-overflow": "reject-publish"})
		return err
	})
	return func() {
		b.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		})
	}
}

// internalExchange makes an exchange to which clients may not publish.
func (b *broker) internalExchange(*testing.T) (undo func()) {
	name := b.name + "-internal"
	b.do(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, true, false, nil)
	})
	return func() {
		b.do(func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) })
	}
}
