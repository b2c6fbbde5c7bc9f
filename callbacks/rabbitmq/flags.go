package rabbitmq

import (
	"errors"
	"flag"
	"fmt"
	"strings"

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
	f.Func("rabbitmq-allow",
		"`TENANT=PATTERN`: Queues and exchanges that a tenant may use, such as acme=queue:acme.*,*=exchange:public; the "+
			"tenant * is every one, and * in a pattern any text. If there are any, all others are refused. (all)",
		func(s string) error {
			var added callbacks.Grants
			if err := added.Set(s); err != nil {
				return err
			}
			for _, g := range added {
				if !strings.HasPrefix(g.Pattern, "queue:") && !strings.HasPrefix(g.Pattern, "exchange:") {
					return fmt.Errorf("must have patterns that begin with queue: or exchange:, not %q", g.Pattern)
				}
			}
			o.Allow = append(o.Allow, added...)
			return nil
		})
}

// Open makes the sender of a replica; nil if no broker is set. An error names the wrong option.
func (o *Options) Open(r callbacks.Replica) (callbacks.Sender, error) {
	if o.URL == "" {
		if o.CAFile+o.CertFile+o.KeyFile != "" || len(o.Allow) > 0 {
			return nil, errors.New("the other options that begin with --rabbitmq- need --rabbitmq-url")
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
