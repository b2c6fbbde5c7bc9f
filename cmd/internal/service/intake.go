package service

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kgo"

	producing "github.com/carillon-scheduler/carillon/callbacks/kafka"
	sending "github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/intake"
	"github.com/carillon-scheduler/carillon/intake/kafka"
	"github.com/carillon-scheduler/carillon/intake/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

// Intake names the queues and topics whose messages are submissions.
type Intake struct {
	RabbitmqQueues origins
	KafkaTopics    origins
	KafkaGroup     string
}

// Flags declares the options.
func (o *Intake) Flags(f *flag.FlagSet) {
	f.Var(&o.RabbitmqQueues, "submit-rabbitmq-queue",
		"`TENANT=QUEUE`: Queues of the broker of --rabbitmq-url whose messages are submissions, such as acme=acme.jobs, "+
			"with commas between them. All jobs of a queue are its tenant's; a QUEUE alone is the default tenant's. See "+
			"docs/queues.md.")
	f.Var(&o.KafkaTopics, "submit-kafka-topic",
		"`TENANT=TOPIC`: Topics of the cluster of --kafka-brokers whose records are submissions, in the same way.")
	f.StringVar(&o.KafkaGroup, "submit-kafka-group", "carillon",
		"`NAME`: Consumer group for these topics. All replicas on one store have the same.")
}

// origins are queues or topics, each with the tenant of its messages. It implements [flag.Value].
type origins []origin

type origin struct{ tenant, name string }

// Set adds a list.
func (o *origins) Set(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		tenant, name, named := strings.Cut(strings.TrimSpace(entry), "=")
		if !named {
			tenant, name = job.DefaultTenant, tenant
		}
		if name == "" || !job.ValidTenant(tenant) {
			return fmt.Errorf("must be a tenant and a name, such as acme=acme.jobs, or a name alone for the default "+
				"tenant, with commas between several, not %q", entry)
		}
		for _, other := range *o {
			if other.name == name {
				return fmt.Errorf("has %s twice; all its messages are one tenant's", name)
			}
		}
		*o = append(*o, origin{tenant, name})
	}
	return nil
}

// String implements [flag.Value].
func (o *origins) String() string {
	texts := make([]string, len(*o))
	for i, one := range *o {
		texts[i] = one.tenant + "=" + one.name
	}
	return strings.Join(texts, ",")
}

// openIntake makes the sources of a service, and returns their doors.
func (p *Parts) openIntake(
	s *Service, api http.Handler, registry prometheus.Registerer,
) (doors []*intake.Door, err error) {
	o := &p.options.Intake
	if len(o.RabbitmqQueues)+len(o.KafkaTopics) == 0 {
		return nil, nil
	}
	metrics := intake.NewMetrics(registry)
	door := func(source, address string, from origin) *intake.Door {
		d := intake.NewDoor(intake.Config{
			API: api, Source: source, Address: address, Tenant: from.tenant, Patience: p.options.ShutdownTimeout,
			Metrics: metrics, Logger: p.log,
		})
		doors = append(doors, d)
		return d
	}
	for _, from := range o.RabbitmqQueues {
		dialer, err := p.rabbitmqDialer()
		if err != nil {
			return nil, err
		}
		s.intake = append(s.intake, rabbitmq.New(rabbitmq.Config{
			Connect: func(ctx context.Context) (*amqp.Connection, error) {
				return dialer.Connect(ctx, "carillon submissions of "+from.name)
			},
			Queue:    from.name,
			MayReply: func(queue string) bool { return dialer.MayUse(from.tenant, queue) },
			Door:     door("queue "+from.name, dialer.Address(), from),
		}))
	}
	for _, from := range o.KafkaTopics {
		cluster, options, err := p.kafkaCluster()
		if err != nil {
			return nil, err
		}
		s.intake = append(s.intake, kafka.New(kafka.Config{
			Options: options, Topic: from.name, Group: o.KafkaGroup,
			MayReply: func(topic string) bool { return cluster.MayUse(from.tenant, topic) },
			Door:     door("topic "+from.name, strings.Join(cluster.Brokers, ","), from),
		}))
	}
	return doors, nil
}

// rabbitmqDialer returns a dialer to the broker of callbacks.
func (p *Parts) rabbitmqDialer() (*sending.Dialer, error) {
	for _, t := range p.options.callbackTypes {
		if o, ok := t.(*sending.Options); ok && o.URL != "" {
			dialer, err := o.Dialer()
			if err != nil {
				return nil, cli.Usagef("--rabbitmq-url: %w", err)
			}
			return dialer, nil
		}
	}
	return nil, cli.Usage(errors.New("--submit-rabbitmq-queue needs --rabbitmq-url"))
}

// kafkaCluster returns the options of the cluster of callbacks, and those of a client for it.
func (p *Parts) kafkaCluster() (*producing.Options, []kgo.Opt, error) {
	for _, t := range p.options.callbackTypes {
		if o, ok := t.(*producing.Options); ok && len(o.Brokers) > 0 {
			own := *o
			own.Logger = p.log
			options, err := own.ClientOptions()
			if err != nil {
				return nil, nil, cli.Usagef("--kafka-brokers: %w", err)
			}
			return &own, options, nil
		}
	}
	return nil, nil, cli.Usage(errors.New("--submit-kafka-topic needs --kafka-brokers"))
}

// notConsumed returns the warnings about queues and topics whose messages wait in the broker.
func notConsumed(doors []*intake.Door) (warnings []string) {
	for _, d := range doors {
		if why := d.Problem(); why != "" {
			warnings = append(warnings, fmt.Sprintf("the submissions of %s wait in the broker: this replica does not consume "+
				"them; the log has the cause", d.Source))
		}
	}
	return warnings
}
