package service

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/alecthomas/kong"

	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
)

// Options configure a replica. Replicas that share a store should agree on all of them.
type Options struct {
	Store     string       `default:"sqlite:carillon.db" placeholder:"URL" help:"Where jobs are kept: sqlite:/var/lib/carillon.db, or postgres://user:password@host/database, or mongodb://user:password@host1,host2/database?replicaSet=rs0, or redis://user:password@host:6379/0, or for a Redis Cluster redis://user:password@host1:6379,host2:6379/?cluster=true, or for a test memory:, of which nothing outlives the process; see docs/stores.md. (${default})"`
	StoreWait cli.Duration `default:"0s" placeholder:"DURATION" help:"How long to keep trying at the start while the store can't be reached. (${default})"`

	RabbitmqURL      string `name:"rabbitmq-url" placeholder:"URL" help:"Broker for callbacks of type rabbitmq, as amqp:// or amqps://USER:PASSWORD@HOST:PORT/VHOST. Without it there are none."`
	RabbitmqCAFile   string `name:"rabbitmq-ca-file" placeholder:"FILE" help:"PEM file of the authorities that the broker's certificate is verified with, for amqps. (the system's)"`
	RabbitmqCertFile string `name:"rabbitmq-cert-file" placeholder:"FILE" help:"PEM file of the client certificate for amqps."`
	RabbitmqKeyFile  string `name:"rabbitmq-key-file" placeholder:"FILE" help:"PEM file of the client certificate's key."`

	KafkaBrokers          []string `placeholder:"HOST:PORT" help:"Brokers by which to find the Kafka cluster for callbacks of type kafka, with commas between them. Without any there are none."`
	KafkaTLS              bool     `name:"kafka-tls" help:"Connect to Kafka by TLS."`
	KafkaCAFile           string   `name:"kafka-ca-file" placeholder:"FILE" help:"PEM file of the authorities that the brokers' certificates are verified with. (the system's)"`
	KafkaCertFile         string   `placeholder:"FILE" help:"PEM file of the client certificate for TLS."`
	KafkaKeyFile          string   `placeholder:"FILE" help:"PEM file of the client certificate's key."`
	KafkaSASLMechanism    string   `name:"kafka-sasl-mechanism" placeholder:"MECHANISM" help:"How to log in to Kafka: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. PLAIN shows the password to whoever can listen, unless there is TLS. (not at all)"`
	KafkaUsername         string   `placeholder:"NAME" help:"User to log in as."`
	KafkaPassword         string   `placeholder:"PASSWORD" help:"The user's password. Better set by CARILLON_KAFKA_PASSWORD or CARILLON_KAFKA_PASSWORD_FILE, since others can see a command line."`
	KafkaAutoCreateTopics bool     `help:"Have the brokers create topics that don't exist, if they are set up to. Else a callback to such a topic fails."`

	Tick            cli.Duration `default:"1s" placeholder:"DURATION" help:"How often to ask the store for the next due time. Bounds how late this replica notices what another one was told. (${default})"`
	Early           cli.Duration `default:"0s" placeholder:"DURATION" help:"How much ahead of its instant an occurrence may fire, for those who prefer early to late. (${default})"`
	Lease           cli.Duration `default:"1m" placeholder:"DURATION" help:"How long a claim is exclusive; when it runs out, another replica takes the occurrence over. (${default})"`
	CallbackTimeout cli.Duration `default:"30s" placeholder:"DURATION" help:"Bound of one callback, from its claim. The lease must be longer by at least 1s, and by at least a tenth of itself. (${default})"`
	Concurrency     int          `default:"256" placeholder:"N" help:"How many callbacks may be under way at once. (${default})"`
	ShutdownTimeout cli.Duration `default:"25s" placeholder:"DURATION" help:"How long callbacks and requests under way may take after SIGTERM or SIGINT. (${default})"`

	Retain           cli.Duration `default:"24h" placeholder:"DURATION" help:"How long a finished job stays readable, from its last instant or retry; 0 for not at all. (${default})"`
	DeadLetterRetain cli.Duration `default:"0s" placeholder:"DURATION" help:"How long dead letters are kept; 0 for ever. (${default})"`

	Fairness

	CatchUpLimit int `default:"1000" placeholder:"N" help:"How many of a crontab's ticks fire late at most, of those that fell due while nothing ran, if its job asks for all. (${default})"`

	MaxInstants int `default:"100000" placeholder:"N" help:"How many instants one job may have; a sequence has one for each job step and subscriber. (${default})"`
	MaxPayload  int `default:"262144" placeholder:"BYTES" help:"How many bytes of callback data one job may have, and of metadata in its steps. (${default})"`
	MaxBody     int `default:"4194304" placeholder:"BYTES" help:"How many bytes a request, or an item of a batch, may have. (${default})"`
}

// Dispatcher is how the options configure a dispatcher, but for its store and senders.
func (o Options) Dispatcher(log *slog.Logger) dispatcher.Config {
	c := dispatcher.Config{
		Logger:           log,
		Tick:             o.Tick.Std(),
		Early:            o.Early.Std(),
		Lease:            o.Lease.Std(),
		CallbackTimeout:  o.CallbackTimeout.Std(),
		Concurrency:      o.Concurrency,
		ShutdownTimeout:  o.ShutdownTimeout.Std(),
		CatchUpLimit:     o.CatchUpLimit,
		Retain:           o.Retain.Std(),
		DeadLetterRetain: o.DeadLetterRetain.Std(),
	}
	o.configure(&c)
	return c
}

func (o Options) limits() job.Limits {
	return job.Limits{Instants: o.MaxInstants, Payload: o.MaxPayload}
}

// check checks what is not the dispatcher's.
func (o Options) check() error {
	for _, bound := range []struct {
		option string
		value  int
	}{{"max-instants", o.MaxInstants}, {"max-payload", o.MaxPayload}, {"max-body", o.MaxBody}} {
		if bound.value < 1 {
			return fmt.Errorf("--%s is %d; it must be at least 1", bound.option, bound.value)
		}
	}
	if o.RabbitmqURL == "" && o.RabbitmqCAFile+o.RabbitmqCertFile+o.RabbitmqKeyFile != "" {
		return errors.New("--rabbitmq-ca-file, --rabbitmq-cert-file and --rabbitmq-key-file need --rabbitmq-url")
	}
	k := o.kafka(nil)
	if len(k.Brokers) == 0 && (k.TLS || k.AutoCreateTopics || k.CAFile+k.CertFile+k.KeyFile+k.Mechanism+k.Username+k.Password != "") {
		return errors.New("the options that begin with --kafka- need --kafka-brokers")
	}
	return nil
}

func (o Options) kafka(log *slog.Logger) kafka.Options {
	return kafka.Options{
		Brokers: o.KafkaBrokers, TLS: o.KafkaTLS, CAFile: o.KafkaCAFile, CertFile: o.KafkaCertFile, KeyFile: o.KafkaKeyFile,
		Mechanism: o.KafkaSASLMechanism, Username: o.KafkaUsername, Password: o.KafkaPassword,
		AutoCreateTopics: o.KafkaAutoCreateTopics, Logger: log,
	}
}

// Defaults are the options when nothing is set, whatever the environment says.
func Defaults() (Options, error) {
	var o Options
	parser, err := kong.New(&o)
	if err != nil {
		return o, err
	}
	_, err = parser.Parse(nil)
	return o, err
}
