package service

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// openSenders makes the senders of all callback types that are configured.
func (p *Parts) openSenders() error {
	o := p.options
	hooks := webhook.New(webhook.Options{IdleConns: max(o.Concurrency, 64), UserAgent: userAgent(moduleVersion())})
	p.closers.add(hooks)
	p.Senders = append(p.Senders, hooks)
	if o.RabbitmqURL != "" {
		queues, err := rabbitmq.New(rabbitmq.Options{
			URL: o.RabbitmqURL, CAFile: o.RabbitmqCAFile, CertFile: o.RabbitmqCertFile, KeyFile: o.RabbitmqKeyFile, Logger: p.log,
		})
		if err != nil {
			return cli.Usage(fmt.Errorf("--rabbitmq-url: %w", err))
		}
		p.closers.add(queues)
		p.Senders = append(p.Senders, queues)
	}
	if len(o.KafkaBrokers) > 0 {
		topics, err := kafka.New(o.kafka(p.log))
		if err != nil {
			return cli.Usage(fmt.Errorf("--kafka-brokers: %w", err))
		}
		p.closers.add(topics)
		p.Senders = append(p.Senders, topics)
	}
	return nil
}
