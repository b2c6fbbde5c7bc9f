package service

import (
	"flag"
	"io"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// callbackTypes returns the options of all callback types. A new type is one more line here and a package.
func callbackTypes() []callbackType {
	return []callbackType{
		&webhook.Options{},
		&rabbitmq.Options{},
		&kafka.Options{},
	}
}

// callbackType is the options of one callback type.
type callbackType interface {
	// Flags declares the options that users set, see [cli.Runner].
	Flags(f *flag.FlagSet)
	// Open makes the sender, which does not connect yet; nil if it is not configured. An error names the wrong option. A
	// sender that is an [io.Closer] is closed at the end.
	Open(r callbacks.Replica) (callbacks.Sender, error)
}

// openSenders makes the senders of all callback types that are configured.
func (p *Parts) openSenders() error {
	replica := callbacks.Replica{
		Concurrency: p.options.Concurrency, UserAgent: userAgent(moduleVersion()), Logger: p.log,
		Exposed: !p.options.Listen.Address.Loopback(),
	}
	for _, t := range p.options.callbackTypes {
		sender, err := t.Open(replica)
		if err != nil {
			return cli.Usage(err)
		}
		if sender == nil {
			continue
		}
		if closer, ok := sender.(io.Closer); ok {
			p.closers.add(closer)
		}
		p.Senders = append(p.Senders, sender)
	}
	return nil
}
