package kafka

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// Flags declares the options that users set.
func (o *Options) Flags(f *flag.FlagSet) {
	f.Func("kafka-brokers",
		"`HOST:PORT`: Brokers by which to find the Kafka cluster for callbacks of type kafka, with commas between them. "+
			"Without any, there are no such callbacks.",
		func(s string) error { o.Brokers = append(o.Brokers, strings.Split(s, ",")...); return nil })
	f.BoolVar(&o.TLS, "kafka-tls", false, "Connect to Kafka by TLS.")
	f.StringVar(&o.CAFile, "kafka-ca-file", "",
		"`FILE`: PEM file of the authorities that the brokers' certificates are verified with. (the system's)")
	f.StringVar(&o.CertFile, "kafka-cert-file", "", "`FILE`: PEM file of the client certificate for TLS.")
	f.StringVar(&o.KeyFile, "kafka-key-file", "", "`FILE`: PEM file of the client certificate's key.")
	f.StringVar(&o.Mechanism, "kafka-sasl-mechanism", "",
		"`MECHANISM`: How to log in to Kafka: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. "+
			"PLAIN sends the password unencrypted, unless there is TLS. (no login)")
	f.StringVar(&o.Username, "kafka-username", "", "`NAME`: User to log in as.")
	f.StringVar(&o.Password, "kafka-password", "",
		"`PASSWORD`: The user's password. Better set by CARILLON_KAFKA_PASSWORD or CARILLON_KAFKA_PASSWORD_FILE, "+
			"since others can see a command line.")
	f.Var(&o.Allow, "kafka-allow",
		"`TENANT=PATTERN`: Topics that a tenant may use, such as acme=acme.*,*=public; the tenant * is every one, and * in "+
			"a pattern any text. If there are any, all others are refused. (all)")
	f.BoolVar(&o.AutoCreateTopics, "kafka-auto-create-topics", false,
		"Have the brokers create topics that don't exist, if they are set up to. Otherwise a callback to such a topic fails.")
}

// Open makes the sender of a replica; nil if no broker is set. An error names the wrong option.
func (o *Options) Open(r callbacks.Replica) (callbacks.Sender, error) {
	if len(o.Brokers) == 0 {
		texts := o.CAFile + o.CertFile + o.KeyFile + o.Mechanism + o.Username + o.Password
		if texts != "" || o.TLS || o.AutoCreateTopics || len(o.Allow) > 0 {
			return nil, errors.New("the options that begin with --kafka- need --kafka-brokers")
		}
		return nil, nil
	}
	o.Logger = r.Logger
	s, err := New(*o)
	if err != nil {
		return nil, fmt.Errorf("--kafka-brokers: %w", err)
	}
	return s, nil
}
