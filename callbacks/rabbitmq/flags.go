package rabbitmq

import (
	"errors"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// Flags declares the options that users set.
func (o *Options) Flags(f *flag.FlagSet) {
	f.StringVar(&o.URL, "rabbitmq-url", "",
		"`URL`: Broker for callbacks of type rabbitmq, as amqp:// or amqps://USER:PASSWORD@HOST:PORT/VHOST. "+
			"Without it, there are no such callbacks.")
	f.StringVar(&o.CAFile, "rabbitmq-ca-file", "",
		"`FILE`: PEM file of the authorities that the broker's certificate is verified with, for amqps. (the system's)")
	f.StringVar(&o.CertFile, "rabbitmq-cert-file", "", "`FILE`: PEM file of the client certificate for amqps.")
	f.StringVar(&o.KeyFile, "rabbitmq-key-file", "", "`FILE`: PEM file of the client certificate's key.")
}

// Open makes the sender of a replica; nil if no broker is set. An error names the option that is wrong.
func (o *Options) Open(r callbacks.Replica) (callbacks.Sender, error) {
	if o.URL == "" {
		if o.CAFile+o.CertFile+o.KeyFile != "" {
			return nil, errors.New("--rabbitmq-ca-file, --rabbitmq-cert-file and --rabbitmq-key-file need --rabbitmq-url")
		}
		return nil, nil
	}
	o.Logger = r.Logger
	s, err := New(*o)
	if err != nil {
		return nil, fmt.Errorf("--rabbitmq-url: %w", err)
	}
	return s, nil
}
