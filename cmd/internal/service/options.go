package service

import (
	"flag"
	"fmt"
	"log/slog"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/history/otlp"
	"github.com/carillon-scheduler/carillon/job"
)

// Options configure a replica. Replicas that share a store should agree on all of them.
type Options struct {
	Store     string // a URL
	StoreWait time.Duration

	Listen listen.Options
	Access

	callbackTypes []callbackType

	Intake Intake // of queues and topics

	EncryptionKeyFiles []string

	Tick            time.Duration
	Early           time.Duration
	Lease           time.Duration
	CallbackTimeout time.Duration
	Concurrency     int
	ShutdownTimeout time.Duration

	Retain           time.Duration
	DeadLetterRetain time.Duration

	History History

	Fairness

	CatchUpLimit int

	MaxInstants int
	MaxPayload  int // bytes
	MaxBody     int // bytes

	Limits Limits // of keys and tenants

	Objectives objectives

	Crowded         int
	ForecastMetrics time.Duration
	UI              string // uiOn or uiOff: whether the web page is served

	Audit string // target of the audit trail, see [audit.Open]
}

// The values of [Options.UI].
const (
	uiOn  = "on"
	uiOff = "off"
)

// Flags declares the options, and sets them to their defaults.
func (o *Options) Flags(f *flag.FlagSet) {
	f.StringVar(&o.Store, "store", "sqlite:carillon.db",
		"`URL`: The store for jobs: "+StoreExamples()+". See docs/stores.md.")
	cli.Duration(f, &o.StoreWait, "store-wait", 0,
		"`DURATION`: Time to retry at the start while the store can't be reached.")

	o.Listen.Flags(f)
	o.Access.Flags(f)

	o.callbackTypes = callbackTypes()
	for _, t := range o.callbackTypes {
		t.Flags(f)
	}

	o.Intake.Flags(f)

	EncryptionKeyFlag(f, &o.EncryptionKeyFiles)

	standard := dispatcher.Defaults
	cli.Duration(f, &o.Tick, "tick", standard.Tick,
		"`DURATION`: Poll interval: the time between queries of the store for the next due time. It bounds the delay "+
			"until this replica notices a submission at another one.")
	cli.Duration(f, &o.Early, "early", standard.Early,
		"`DURATION`: Maximum time that an occurrence may fire before its instant.")
	cli.Duration(f, &o.Lease, "lease", standard.Lease,
		"`DURATION`: Time for which a claim is exclusive. After it, another replica takes over the occurrence.")
	cli.Duration(f, &o.CallbackTimeout, "callback-timeout", standard.CallbackTimeout,
		"`DURATION`: Time limit of a callback, from its claim. The lease must be longer, by at least 1s and by at least "+
			"a tenth of itself.")
	f.IntVar(&o.Concurrency, "concurrency", standard.Concurrency, "`N`: Maximum number of callbacks under way.")
	cli.Duration(f, &o.ShutdownTimeout, "shutdown-timeout", standard.ShutdownTimeout,
		"`DURATION`: Time for callbacks and requests under way to end after SIGTERM or SIGINT.")

	cli.Duration(f, &o.Retain, "retain", standard.Retain,
		"`DURATION`: Time for which a finished job stays readable, from its last instant or retry; 0 for none.")
	cli.Duration(f, &o.DeadLetterRetain, "dead-letter-retain", standard.DeadLetterRetain,
		"`DURATION`: Retention of dead letters; 0 for ever.")

	o.History.Flags(f)

	o.Fairness.Flags(f)

	f.IntVar(&o.CatchUpLimit, "catch-up-limit", standard.CatchUpLimit,
		"`N`: Maximum number of a crontab's ticks that fire late after an outage, if its job has the catch-up rule all.")

	f.IntVar(&o.MaxInstants, "max-instants", 100_000,
		"`N`: Maximum number of instants of a job. A sequence has one for each job step and subscriber.")
	f.IntVar(&o.MaxPayload, "max-payload", 262_144,
		"`BYTES`: Maximum size of a job's callback data with the metadata in its steps.")
	f.IntVar(&o.MaxBody, "max-body", 4_194_304, "`BYTES`: Maximum size of a request, or of an item of a batch.")

	o.Limits.Flags(f)

	o.Objectives.Flags(f)

	f.IntVar(&o.Crowded, "crowded", 0,
		"`N`: Number of occurrences within one second beyond which answers to submissions warn that an instant is crowded; "+
			"0 for never. See docs/forecast.md.")
	cli.Duration(f, &o.ForecastMetrics, "forecast-metrics", 0,
		"`DURATION`: Interval at which the definitions of all jobs are read for the metric of the next hour; 0 for never: "+
			"then the metric has a value while forecasts are asked for.")
	cli.Choice(f, &o.UI, "ui", []string{uiOn, uiOff}, "`MODE`: Whether the web page is served, at /ui/. See docs/ui.md.")

	cli.Text(f, &o.Audit, "audit",
		"`PATH`: Target of the audit trail: a line of JSON for each change and each refusal. It is a file, which may "+
			"be rotated, or stdout. See docs/audit.md.")
}

// EncryptionKeyFlag declares the option with the files of encryption keys.
func EncryptionKeyFlag(f *flag.FlagSet, files *[]string) {
	cli.List(f, files, "encryption-key-file",
		"`FILES`: Files with the keys that encrypt secrets in the store, with commas between them. The first one encrypts, "+
			"all decrypt. \"carillon secrets new-key FILE\" makes one. (none: secrets can't be stored)")
}

// Configure returns options with the given settings, by their names, and the defaults for all others.
func Configure(settings map[string]string) (o Options, err error) {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	o.Flags(f)
	for name, value := range settings {
		if err := f.Set(name, value); err != nil {
			return o, cli.Usagef("--%s: %w", name, err)
		}
	}
	return o, nil
}

// Dispatcher returns the configuration of a dispatcher without its store and senders.
func (o *Options) Dispatcher(log *slog.Logger) dispatcher.Config {
	c := dispatcher.Config{
		Logger:           log,
		Tick:             o.Tick,
		Early:            o.Early,
		Lease:            o.Lease,
		CallbackTimeout:  o.CallbackTimeout,
		Concurrency:      o.Concurrency,
		ShutdownTimeout:  o.ShutdownTimeout,
		CatchUpLimit:     o.CatchUpLimit,
		Retain:           o.Retain,
		DeadLetterRetain: o.DeadLetterRetain,
	}
	o.configure(&c)
	return c
}

// plainKeys reports whether keys may come from other machines without TLS.
func (o *Options) plainKeys() bool {
	return o.Auth == authKeys && o.Listen.TLS.CertFile == "" && !o.Listen.Address.Loopback()
}

func (o *Options) limits() job.Limits {
	return job.Limits{Instants: o.MaxInstants, Payload: o.MaxPayload}
}

// check checks all options except the dispatcher's.
func (o *Options) check() error {
	if err := o.Listen.Check(); err != nil {
		return err
	}
	if err := o.Access.check(o.Listen.Address.Loopback(), o.Store); err != nil {
		return err
	}
	if o.History.Sink != "" {
		if _, err := otlp.CheckURL(o.History.Sink); err != nil {
			return fmt.Errorf("--history-sink %w", err)
		}
	}
	for _, bound := range []struct {
		option string
		value  int
	}{{"max-instants", o.MaxInstants}, {"max-payload", o.MaxPayload}, {"max-body", o.MaxBody}} {
		if bound.value < 1 {
			return fmt.Errorf("--%s is %d; it must be at least 1", bound.option, bound.value)
		}
	}
	if o.Crowded < 0 {
		return fmt.Errorf("--crowded is %d; it must be at least 1, or 0 for never", o.Crowded)
	}
	return nil
}
