// Carillon-bench measures the speed and punctuality of Carillon on a machine and a store, beside the limits of both. It
// is a program of its own, so that the service contains no code that empties a store.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/carillon-bench/bench"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// program returns the command line, with a command for each mode of the bench.
func program() cli.Program {
	return cli.Program{
		Name: "carillon-bench", Description: description, Version: service.Version("carillon-bench"),
		Commands: []cli.Command{
			{
				Name: "drain", New: func() cli.Runner { return &benchDrain{} },
				Help: "How many due occurrences are fired in a second, from the claim to the settlement on disk.",
			},
			{
				Name: "browse", New: func() cli.Runner { return &benchBrowse{} },
				Help: "How much slower a backlog is drained while people look at the web page.",
			},
			{
				Name: "steady", New: func() cli.Runner { return &benchSteady{} },
				Help: "How late occurrences fire that come at a steady rate.",
			},
			{
				Name: "burst", New: func() cli.Runner { return &benchBurst{} },
				Help: "How long it takes to fire many occurrences that fall due within one second.",
			},
			{
				Name: "mixed", New: func() cli.Runner { return &benchMixed{} },
				Help: "Submitting and firing at the same time, at the same rate.",
			},
			{
				Name: "fairness", New: func() cli.Runner { return &benchFairness{} },
				Help: "The shares of tenants, priorities and destinations that compete for a replica's slots.",
			},
			{
				Name: "submit", New: func() cli.Runner { return &benchSubmit{} },
				Help: "How many jobs the HTTP API takes in a second, in batches and one by one.",
			},
			{
				Name: "intake", New: func() cli.Runner { return &benchIntake{} },
				Help: "How many submissions are taken from a queue of RabbitMQ in a second.",
			},
			{
				Name: "pending", New: func() cli.Runner { return &benchPending{} },
				Help: "The cost of claims and puts, the number of claims, and the memory, while ever more occurrences wait.",
			},
			{
				Name: "idle", New: func() cli.Runner { return &benchIdle{} },
				Help: "The cost of a replica while nothing is due.",
			},
			{
				Name: "tenants", New: func() cli.Runner { return &benchTenants{} },
				Help: "The cost of a replica, and how late it fires, while many tenants have something pending.",
			},
			{
				Name: "feed", New: func() cli.Runner { return &benchFeed{} },
				Help: "Submit a mixture of lists, crontabs and sequences all the time, for dashboards to show something.",
			},
			{Name: "part", Arguments: "ROLE", New: func() cli.Runner { return &benchPart{} }}, // a process of a bench
		},
	}
}

const description = "Measure how fast and how punctual Carillon is on this machine and store, beside what they could " +
	"do at best."

func main() {
	service.CollectRarely() // as the service does; replicas run in processes of this program
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	return program().Run(args, stdout, stderr)
}

// benchOptions are the options of all modes.
type benchOptions struct {
	store, callback              string
	rabbitmqURL                  string
	kafkaBrokers                 []string
	concurrency, payload, rounds int
	profile, history             string
	secure, force, asJSON        bool
}

// Flags declares the options.
func (o *benchOptions) Flags(f *flag.FlagSet) {
	f.StringVar(&o.store, "store", "",
		"`URL`: Store to measure on, which must be empty. What the bench makes there it deletes. (an SQLite file of its own)")
	cli.Choice(f, &o.callback, "callback", []string{"discard", "http", "rabbitmq", "kafka"},
		"`TYPE`: How to fire: discard does nothing, http calls a receiver in a process of its own, rabbitmq and kafka "+
			"publish to a queue or topic of their own.")
	f.StringVar(&o.rabbitmqURL, "rabbitmq-url", "", "`URL`: Broker for --callback=rabbitmq, and for intake.")
	cli.List(f, &o.kafkaBrokers, "kafka-brokers", "`HOST:PORT`: Brokers for --callback=kafka.")
	f.IntVar(&o.concurrency, "concurrency", 2048, "`N`: How many callbacks a replica may have under way at once. "+
		"The default is two of the largest claims: while one is fired, the next can be made.")
	f.IntVar(&o.payload, "payload", 200, "`BYTES`: How much each occurrence delivers.")
	f.IntVar(&o.rounds, "rounds", 3, "`N`: How often each thing is measured. The table shows medians.")
	f.StringVar(&o.profile, "profile", "",
		"`PREFIX`: Write profiles of the replicas' CPU time to files whose names begin with this, for go tool pprof: "+
			"PREFIX.1 and so on, and PREFIX.api.1 of replicas that only take submissions.")
	f.StringVar(&o.history, "history", "24h",
		"`DURATION`: How long the replicas keep history, as --history of carillon serve; 0 keeps none. It stays "+
			"in the store for that time.")
	f.BoolVar(&o.secure, "secure", false, "Have the API ask for keys, and sign what is delivered. Not for feed.")
	f.BoolVar(&o.force, "force", false, "Measure on a store that is not empty, or that replicas claim from.")
	f.BoolVar(&o.asJSON, "json", false, "Print the report as JSON.")
}

// run measures one mode and prints the report. After an error, it prints the figures measured so far.
func (o benchOptions) run(ctx context.Context, in cli.Input, name string, mode bench.Mode) error {
	switch {
	case o.concurrency < 1 || o.rounds < 1:
		return cli.Usage(errors.New("--concurrency and --rounds must be at least 1"))
	case o.payload < 40:
		return cli.Usage(fmt.Errorf("--payload is %d; it must be at least 40", o.payload))
	case o.callback == "rabbitmq" && o.rabbitmqURL == "":
		return cli.Usage(errors.New("--callback=rabbitmq needs --rabbitmq-url"))
	case o.callback == "kafka" && len(o.kafkaBrokers) == 0:
		return cli.Usage(errors.New("--callback=kafka needs --kafka-brokers"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	report, err := bench.Run(ctx, bench.Setup{
		Store: o.store, Callback: o.callback, RabbitmqURL: o.rabbitmqURL, KafkaBrokers: o.kafkaBrokers,
		Concurrency: o.concurrency, Payload: o.payload, Rounds: o.rounds, Force: o.force, Profile: o.profile,
		Secure: o.secure, History: o.history,
		Part: []string{self, "part"}, Progress: in.Stderr,
	}, name, mode)
	if errors.Is(err, bench.ErrNotEmpty) {
		return cli.Usage(err)
	}
	if len(report.Figures) > 0 {
		write := report.WriteTable
		if o.asJSON {
			write = report.WriteJSON
		}
		err = errors.Join(err, write(in.Stdout))
	}
	return err
}

// benchDrain measures draining.
type benchDrain struct {
	benchOptions
	count    int
	replicas int
}

// Flags declares the options.
func (c *benchDrain) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 300000, "`N`: How many occurrences to fire in each round.")
	f.IntVar(&c.replicas, "replicas", 1, "`N`: How many replicas fire.")
}

// Run measures.
func (c *benchDrain) Run(ctx context.Context, in cli.Input) error {
	if c.count < 1 || c.replicas < 1 {
		return cli.Usage(errors.New("--count and --replicas must be at least 1"))
	}
	return c.run(ctx, in, "drain", bench.Drain{Count: c.count, Replicas: c.replicas})
}

// benchBrowse measures draining with viewers of the web page.
type benchBrowse struct {
	benchOptions
	count   int
	viewers int
}

// Flags declares the options.
func (c *benchBrowse) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 1_000_000, "`N`: How many occurrences each drain has; two drains are a round.")
	f.IntVar(&c.viewers, "viewers", 1, "`N`: How many people have the page's overview open.")
}

// Run measures.
func (c *benchBrowse) Run(ctx context.Context, in cli.Input) error {
	if c.count < 1 || c.viewers < 1 {
		return cli.Usage(errors.New("--count and --viewers must be at least 1"))
	}
	return c.run(ctx, in, "browse", bench.Browse{Count: c.count, Viewers: c.viewers})
}

// benchSteady measures punctuality.
type benchSteady struct {
	benchOptions
	rate     float64
	duration time.Duration
}

// Flags declares the options.
func (c *benchSteady) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.Float64Var(&c.rate, "rate", 2000, "`N`: How many fall due in a second.")
	cli.Duration(f, &c.duration, "duration", time.Minute, "`DURATION`: For how long.")
}

// Run measures.
func (c *benchSteady) Run(ctx context.Context, in cli.Input) error {
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	return c.run(ctx, in, "steady", bench.Steady{Rate: c.rate, Duration: c.duration})
}

// benchBurst measures many occurrences that fall due in one second.
type benchBurst struct {
	benchOptions
	count int
}

// Flags declares the options.
func (c *benchBurst) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 50000, "`N`: How many fall due within the second.")
}

// Run measures.
func (c *benchBurst) Run(ctx context.Context, in cli.Input) error {
	if c.count < 1 {
		return cli.Usage(errors.New("--count must be at least 1"))
	}
	return c.run(ctx, in, "burst", bench.Burst{Count: c.count})
}

// benchMixed measures submitting and firing at the same time.
type benchMixed struct {
	benchOptions
	rate        float64
	duration    time.Duration
	connections int
}

// Flags declares the options.
func (c *benchMixed) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.Float64Var(&c.rate, "rate", 2800,
		"`N`: How many are submitted, and fire, in a second; 2800 is 10 million in an hour.")
	cli.Duration(f, &c.duration, "duration", time.Minute, "`DURATION`: For how long.")
	f.IntVar(&c.connections, "connections", 64, "`N`: How many submissions are under way at once.")
}

// Run measures.
func (c *benchMixed) Run(ctx context.Context, in cli.Input) error {
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	if c.connections < 1 {
		return cli.Usage(errors.New("--connections must be at least 1"))
	}
	return c.run(ctx, in, "mixed", bench.Mixed{Rate: c.rate, Duration: c.duration, Connections: c.connections})
}

// benchFairness measures competition for slots.
type benchFairness struct {
	benchOptions
	only     []string
	count    int
	tenants  int
	spread   float64
	rate     float64
	duration time.Duration
}

// Flags declares the options.
func (c *benchFairness) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	cli.List(f, &c.only, "only",
		"`PARTS`: The parts to measure, with commas between them: backlog (a tenant beside the backlog of another), shares "+
			"(many tenants with backlogs), priorities, or destinations (one beside others that are slow or down, by http "+
			"whatever --callback says). (all of them)")
	f.IntVar(&c.count, "count", 200000,
		"`N`: How large the one tenant's backlog is: the other gets a two-hundredth at once, the largest of "+
			"many a half, each priority a fourth, a slow destination and one that is down a fortieth.")
	f.IntVar(&c.tenants, "tenants", 100, "`N`: How many tenants compete in shares.")
	f.Float64Var(&c.spread, "spread", 1000,
		"`N`: How many times as large as the smallest backlog in shares the largest is.")
	f.Float64Var(&c.rate, "rate", 500, "`N`: How many go to the healthy destination in a second.")
	cli.Duration(f, &c.duration, "duration", 30*time.Second, "`DURATION`: For how long.")
}

// Run measures.
func (c *benchFairness) Run(ctx context.Context, in cli.Input) error {
	if len(c.only) == 0 {
		c.only = bench.FairnessParts
	}
	for _, part := range c.only {
		if !slices.Contains(bench.FairnessParts, part) {
			return cli.Usagef("--only: there is no part %q; there are %s", part, strings.Join(bench.FairnessParts, ", "))
		}
	}
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	if c.count < 1000 || c.tenants < 2 || !(c.spread >= 1) {
		return cli.Usage(errors.New("--count must be at least 1000, --tenants at least 2, and --spread at least 1"))
	}
	return c.run(ctx, in, "fairness", bench.Fairness{
		Only: c.only, Count: c.count, Tenants: c.tenants, Spread: c.spread, Rate: c.rate, Duration: c.duration})
}

// benchSubmit measures submitting.
type benchSubmit struct {
	benchOptions
	count       int
	connections int
}

// Flags declares the options.
func (c *benchSubmit) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 100000,
		"`N`: How many jobs are submitted in batches in each round, and a fourth of that one by one.")
	f.IntVar(&c.connections, "connections", 256,
		"`N`: How many requests are under way at once when jobs are submitted one by one.")
}

// Run measures.
func (c *benchSubmit) Run(ctx context.Context, in cli.Input) error {
	if c.count < 4 || c.connections < 1 {
		return cli.Usage(errors.New("--count must be at least 4, and --connections at least 1"))
	}
	return c.run(ctx, in, "submit", bench.Submit{Count: c.count, Connections: c.connections})
}

// benchIntake measures submissions from a queue.
type benchIntake struct {
	benchOptions
	count int
}

// Flags declares the options.
func (c *benchIntake) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 100000,
		"`N`: How many jobs are submitted in each round, in batches and by a queue of the broker of --rabbitmq-url.")
}

// Run measures.
func (c *benchIntake) Run(ctx context.Context, in cli.Input) error {
	switch {
	case c.count < 20_000:
		return cli.Usage(errors.New("--count must be at least 20000: several groups of messages"))
	case c.rabbitmqURL == "":
		return cli.Usage(errors.New("intake needs --rabbitmq-url"))
	}
	return c.run(ctx, in, "intake", bench.Intake{Count: c.count})
}

// benchPending measures the cost of waiting occurrences.
type benchPending struct {
	benchOptions
	sizes    []int
	instants int
	crontab  string
	rate     float64
	duration time.Duration
}

// Flags declares the options.
func (c *benchPending) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.Func("sizes", "`N,N`: How many occurrences wait, each number larger than the one before. (10000,100000,1000000)",
		c.setSizes)
	f.IntVar(&c.instants, "instants", 1, "`N`: How many of them each job has.")
	f.StringVar(&c.crontab, "crontab", "",
		"`CRONTAB`: Have as many jobs with this crontab wait instead, such as '@every 30d'.")
	f.Float64Var(&c.rate, "rate", 500, "`N`: How many occurrences fire in a second beside those.")
	cli.Duration(f, &c.duration, "duration", 10*time.Second, "`DURATION`: For how long.")
}

func (c *benchPending) setSizes(list string) error {
	c.sizes = nil
	for n := range strings.SplitSeq(list, ",") {
		size, err := strconv.Atoi(n)
		if err != nil {
			return fmt.Errorf("must be whole numbers with commas between them, not %q", list)
		}
		c.sizes = append(c.sizes, size)
	}
	return nil
}

// Run measures.
func (c *benchPending) Run(ctx context.Context, in cli.Input) error {
	if c.sizes == nil {
		c.sizes = []int{10_000, 100_000, 1_000_000}
	}
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	if c.instants < 1 || len(c.sizes) == 0 || !slices.IsSorted(c.sizes) || c.sizes[0] < c.instants {
		return cli.Usage(errors.New("--instants must be at least 1, and --sizes not smaller, each larger than the one " +
			"before"))
	}
	return c.run(ctx, in, "pending", bench.Pending{
		Sizes: c.sizes, Instants: c.instants, Crontab: c.crontab, Rate: c.rate, Duration: c.duration})
}

// benchIdle measures the cost of an idle replica.
type benchIdle struct {
	benchOptions
	pending  int
	duration time.Duration
}

// Flags declares the options.
func (c *benchIdle) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.pending, "pending", 10000, "`N`: How many occurrences wait meanwhile.")
	cli.Duration(f, &c.duration, "duration", 20*time.Second, "`DURATION`: How long each round takes.")
}

// Run measures.
func (c *benchIdle) Run(ctx context.Context, in cli.Input) error {
	if c.pending < 1 || c.duration <= 0 {
		return cli.Usage(errors.New("--pending must be at least 1, and --duration more than 0"))
	}
	return c.run(ctx, in, "idle", bench.Idle{Pending: c.pending, Duration: c.duration})
}

// benchTenants measures the cost of many tenants.
type benchTenants struct {
	benchOptions
	count    int
	few      int
	rate     float64
	duration time.Duration
}

// Flags declares the options.
func (c *benchTenants) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.IntVar(&c.count, "count", 100000, "`N`: How many tenants have something pending.")
	f.IntVar(&c.few, "few", 100, "`N`: How many to compare with.")
	f.Float64Var(&c.rate, "rate", 200,
		"`N`: How many occurrences fall due in a second, each of another tenant.")
	cli.Duration(f, &c.duration, "duration", 20*time.Second,
		"`DURATION`: For how long they do, and for how long nothing does.")
}

// Run measures.
func (c *benchTenants) Run(ctx context.Context, in cli.Input) error {
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	if c.few < 1 || c.count <= c.few {
		return cli.Usage(errors.New("--few must be at least 1, and --count more than that"))
	}
	return c.run(ctx, in, "tenants", bench.Tenants{Count: c.count, Few: c.few, Rate: c.rate, Duration: c.duration})
}

// benchFeed submits a mixture of jobs.
type benchFeed struct {
	benchOptions
	url      string
	rate     float64
	duration time.Duration
}

// Flags declares the options.
func (c *benchFeed) Flags(f *flag.FlagSet) {
	c.benchOptions.Flags(f)
	f.StringVar(&c.url, "url", "",
		"`URL`: API of the service to feed, such as http://127.0.0.1:8080. (a replica of its own)")
	f.Float64Var(&c.rate, "rate", 20,
		"`N`: How many jobs are submitted in a second; each fires a few times within minutes.")
	cli.Duration(f, &c.duration, "duration", time.Hour, "`DURATION`: For how long; an interruption ends it in good order.")
}

// Run feeds.
func (c *benchFeed) Run(ctx context.Context, in cli.Input) error {
	if err := checkRate(c.rate, c.duration); err != nil {
		return err
	}
	c.callback, c.rounds = "http", 1
	return c.run(ctx, in, "feed", bench.Feed{URL: c.url, Rate: c.rate, Duration: c.duration})
}

// checkRate checks a rate and its duration.
func checkRate(rate float64, d time.Duration) error {
	if rate <= 0 || d <= 0 || rate*d.Seconds() < 1 {
		return cli.Usage(errors.New("--rate and --duration must be more than 0, and together at least one occurrence"))
	}
	return nil
}

// benchPart runs a part of another process's bench.
type benchPart struct{}

// Flags declares no options.
func (*benchPart) Flags(*flag.FlagSet) {}

// Run plays the role in the argument until standard input ends.
func (*benchPart) Run(ctx context.Context, in cli.Input) error {
	return bench.RunPart(ctx, strings.Join(in.Arguments, " "), os.Stdin, in.Stdout, in.Stderr)
}
