// Carillon-bench measures how fast and how punctual Carillon is on a machine and a store, beside what these could do at
// best. It is a program of its own, so that the service has nothing in it that empties a store.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/carillon-scheduler/carillon/cmd/carillon-bench/bench"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// commands is the command line: the modes of the bench.
type commands struct {
	Drain    benchDrain    `cmd:"" help:"How many due occurrences are fired in a second, from the claim to the settlement on disk."`
	Steady   benchSteady   `cmd:"" help:"How late occurrences fire that come at a steady rate."`
	Burst    benchBurst    `cmd:"" help:"How long it takes to fire many occurrences that fall due within one second."`
	Mixed    benchMixed    `cmd:"" help:"Submitting and firing at the same time, at the same rate."`
	Fairness benchFairness `cmd:"" help:"What tenants, priorities and destinations get that compete for a replica's slots."`
	Submit   benchSubmit   `cmd:"" help:"How many jobs the HTTP API takes in a second, in batches and one by one."`
	Pending  benchPending  `cmd:"" help:"What a claim costs, and how much memory it takes, while ever more occurrences wait."`
	Idle     benchIdle     `cmd:"" help:"What a replica costs while nothing is due."`
	Tenants  benchTenants  `cmd:"" help:"What a replica costs, and how late it fires, while ever so many tenants have something pending."`
	Feed     benchFeed     `cmd:"" help:"Submit a mixture of lists, crontabs and sequences all the time, for dashboards to show something."`

	Part    benchPart        `cmd:"" name:"part" hidden:"" help:"Be a process of a bench."`
	Version kong.VersionFlag `env:"-" help:"Print the version and exit."`
}

const description = `Measure how fast and how punctual Carillon is on this machine and store, beside what they could do at best.`

func main() {
	service.CollectRarely() // as the service does, which runs in a process of this program
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	program := cli.Program{Name: "carillon-bench", Description: description, Version: service.Version("carillon-bench")}
	return cli.Run(program, &commands{}, args, stdout, stderr)
}

// benchOptions are those of every mode.
type benchOptions struct {
	Store        string   `env:"-" placeholder:"URL" help:"Store to measure on, which must be empty. What the bench makes there it deletes. (an SQLite file of its own)"`
	Callback     string   `env:"-" default:"discard" enum:"discard,http,rabbitmq,kafka" placeholder:"TYPE" help:"How to fire: discard does nothing, http calls a receiver in a process of its own, rabbitmq and kafka publish to a queue or topic of their own. (${default})"`
	RabbitmqURL  string   `env:"-" name:"rabbitmq-url" placeholder:"URL" help:"Broker for --callback=rabbitmq."`
	KafkaBrokers []string `env:"-" placeholder:"HOST:PORT" help:"Brokers for --callback=kafka."`
	Concurrency  int      `env:"-" default:"1024" placeholder:"N" help:"How many callbacks a replica may have under way at once. (${default})"`
	Payload      int      `env:"-" default:"200" placeholder:"BYTES" help:"How much each occurrence delivers. (${default})"`
	Rounds       int      `env:"-" default:"3" placeholder:"N" help:"How often each thing is measured; the table shows medians. (${default})"`
	Profile      string   `env:"-" placeholder:"PREFIX" help:"Write profiles of the replicas' CPU time to files whose names begin with this, for go tool pprof: PREFIX.1 and so on, and PREFIX.api.1 of replicas that only take submissions."`
	Force        bool     `env:"-" help:"Measure on a store that is not empty, or that replicas claim from."`
	JSON         bool     `env:"-" name:"json" help:"Print the report as JSON."`
}

// run measures one mode and prints the report, of what was measured before an error too.
func (o benchOptions) run(ctx context.Context, out cli.Output, name string, mode bench.Mode) error {
	switch {
	case o.Concurrency < 1 || o.Rounds < 1:
		return cli.Usage(errors.New("--concurrency and --rounds must be at least 1"))
	case o.Payload < 40:
		return cli.Usage(fmt.Errorf("--payload is %d; it must be at least 40", o.Payload))
	case o.Callback == "rabbitmq" && o.RabbitmqURL == "":
		return cli.Usage(errors.New("--callback=rabbitmq needs --rabbitmq-url"))
	case o.Callback == "kafka" && len(o.KafkaBrokers) == 0:
		return cli.Usage(errors.New("--callback=kafka needs --kafka-brokers"))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	report, err := bench.Run(ctx, bench.Setup{
		Store: o.Store, Callback: o.Callback, RabbitmqURL: o.RabbitmqURL, KafkaBrokers: o.KafkaBrokers,
		Concurrency: o.Concurrency, Payload: o.Payload, Rounds: o.Rounds, Force: o.Force, Profile: o.Profile,
		Part: []string{self, "part"}, Progress: out.Stderr,
	}, name, mode)
	if errors.Is(err, bench.ErrNotEmpty) {
		return cli.Usage(err)
	}
	if len(report.Figures) > 0 {
		write := report.WriteTable
		if o.JSON {
			write = report.WriteJSON
		}
		err = errors.Join(err, write(out.Stdout))
	}
	return err
}

// benchDrain measures draining.
type benchDrain struct {
	benchOptions
	Count    int `env:"-" default:"300000" placeholder:"N" help:"How many occurrences to fire in each round. (${default})"`
	Replicas int `env:"-" default:"1" placeholder:"N" help:"How many replicas fire. (${default})"`
}

// Run measures.
func (c *benchDrain) Run(ctx context.Context, out cli.Output) error {
	if c.Count < 1 || c.Replicas < 1 {
		return cli.Usage(errors.New("--count and --replicas must be at least 1"))
	}
	return c.run(ctx, out, "drain", bench.Drain{Count: c.Count, Replicas: c.Replicas})
}

// benchSteady measures punctuality.
type benchSteady struct {
	benchOptions
	Rate     float64      `env:"-" default:"2000" placeholder:"N" help:"How many fall due in a second. (${default})"`
	Duration cli.Duration `env:"-" default:"60s" placeholder:"DURATION" help:"For how long. (${default})"`
}

// Run measures.
func (c *benchSteady) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	return c.run(ctx, out, "steady", bench.Steady{Rate: c.Rate, Duration: c.Duration.Std()})
}

// benchBurst measures a crowd.
type benchBurst struct {
	benchOptions
	Count int `env:"-" default:"50000" placeholder:"N" help:"How many fall due within the second. (${default})"`
}

// Run measures.
func (c *benchBurst) Run(ctx context.Context, out cli.Output) error {
	if c.Count < 1 {
		return cli.Usage(errors.New("--count must be at least 1"))
	}
	return c.run(ctx, out, "burst", bench.Burst{Count: c.Count})
}

// benchMixed measures submitting and firing.
type benchMixed struct {
	benchOptions
	Rate        float64      `env:"-" default:"2800" placeholder:"N" help:"How many are submitted, and fire, in a second; 2800 is 10 million in an hour. (${default})"`
	Duration    cli.Duration `env:"-" default:"60s" placeholder:"DURATION" help:"For how long. (${default})"`
	Connections int          `env:"-" default:"64" placeholder:"N" help:"How many submissions are under way at once. (${default})"`
}

// Run measures.
func (c *benchMixed) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	if c.Connections < 1 {
		return cli.Usage(errors.New("--connections must be at least 1"))
	}
	return c.run(ctx, out, "mixed", bench.Mixed{Rate: c.Rate, Duration: c.Duration.Std(), Connections: c.Connections})
}

// benchFairness measures what those get who compete.
type benchFairness struct {
	benchOptions
	Only     []string     `env:"-" enum:"backlog,shares,priorities,destinations" default:"backlog,shares,priorities,destinations" placeholder:"PART" help:"What to measure: backlog (a tenant beside the backlog of another), shares (many tenants with backlogs), priorities, or destinations (one beside others that are slow or down, by http whatever --callback says). (all of it)"`
	Count    int          `env:"-" default:"200000" placeholder:"N" help:"How large the one tenant's backlog is: the other gets a two-hundredth at once, the largest of many a half, each priority a fourth, a slow destination and one that is down a fortieth. (${default})"`
	Tenants  int          `env:"-" default:"100" placeholder:"N" help:"How many tenants compete in shares. (${default})"`
	Spread   float64      `env:"-" default:"1000" placeholder:"N" help:"How many times as large as the smallest backlog in shares the largest is. (${default})"`
	Rate     float64      `env:"-" default:"500" placeholder:"N" help:"How many go to the healthy destination in a second. (${default})"`
	Duration cli.Duration `env:"-" default:"30s" placeholder:"DURATION" help:"For how long. (${default})"`
}

// Run measures.
func (c *benchFairness) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	if c.Count < 1000 || c.Tenants < 2 || !(c.Spread >= 1) {
		return cli.Usage(errors.New("--count must be at least 1000, --tenants at least 2, and --spread at least 1"))
	}
	return c.run(ctx, out, "fairness", bench.Fairness{
		Only: c.Only, Count: c.Count, Tenants: c.Tenants, Spread: c.Spread, Rate: c.Rate, Duration: c.Duration.Std()})
}

// benchSubmit measures submitting.
type benchSubmit struct {
	benchOptions
	Count       int `env:"-" default:"100000" placeholder:"N" help:"How many jobs are submitted in batches in each round, and a fourth of that one by one. (${default})"`
	Connections int `env:"-" default:"256" placeholder:"N" help:"How many requests are under way at once when jobs are submitted one by one. (${default})"`
}

// Run measures.
func (c *benchSubmit) Run(ctx context.Context, out cli.Output) error {
	if c.Count < 4 || c.Connections < 1 {
		return cli.Usage(errors.New("--count must be at least 4, and --connections at least 1"))
	}
	return c.run(ctx, out, "submit", bench.Submit{Count: c.Count, Connections: c.Connections})
}

// benchPending measures what waiting occurrences cost.
type benchPending struct {
	benchOptions
	Sizes    []int        `env:"-" default:"10000,100000,1000000" placeholder:"N" help:"How many occurrences wait, each number larger than the one before. (${default})"`
	Instants int          `env:"-" default:"1" placeholder:"N" help:"How many of them each job has. (${default})"`
	Crontab  string       `env:"-" placeholder:"CRONTAB" help:"Have as many jobs with this crontab wait instead, such as '@every 30d'."`
	Rate     float64      `env:"-" default:"500" placeholder:"N" help:"How many occurrences fire in a second beside those. (${default})"`
	Duration cli.Duration `env:"-" default:"10s" placeholder:"DURATION" help:"For how long. (${default})"`
}

// Run measures.
func (c *benchPending) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	if c.Instants < 1 || len(c.Sizes) == 0 || !slices.IsSorted(c.Sizes) || c.Sizes[0] < c.Instants {
		return cli.Usage(errors.New("--instants must be at least 1, and --sizes not smaller, each larger than the one before"))
	}
	return c.run(ctx, out, "pending", bench.Pending{
		Sizes: c.Sizes, Instants: c.Instants, Crontab: c.Crontab, Rate: c.Rate, Duration: c.Duration.Std()})
}

// benchIdle measures doing nothing.
type benchIdle struct {
	benchOptions
	Pending  int          `env:"-" default:"10000" placeholder:"N" help:"How many occurrences wait meanwhile. (${default})"`
	Duration cli.Duration `env:"-" default:"20s" placeholder:"DURATION" help:"How long each round takes. (${default})"`
}

// Run measures.
func (c *benchIdle) Run(ctx context.Context, out cli.Output) error {
	if c.Pending < 1 || c.Duration.Std() <= 0 {
		return cli.Usage(errors.New("--pending must be at least 1, and --duration more than 0"))
	}
	return c.run(ctx, out, "idle", bench.Idle{Pending: c.Pending, Duration: c.Duration.Std()})
}

// benchTenants measures what many tenants cost.
type benchTenants struct {
	benchOptions
	Count    int          `env:"-" default:"100000" placeholder:"N" help:"How many tenants have something pending. (${default})"`
	Few      int          `env:"-" default:"100" placeholder:"N" help:"How many to compare with. (${default})"`
	Rate     float64      `env:"-" default:"200" placeholder:"N" help:"How many occurrences fall due in a second, each of another tenant. (${default})"`
	Duration cli.Duration `env:"-" default:"20s" placeholder:"DURATION" help:"For how long they do, and for how long nothing does. (${default})"`
}

// Run measures.
func (c *benchTenants) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	if c.Few < 1 || c.Count <= c.Few {
		return cli.Usage(errors.New("--few must be at least 1, and --count more than that"))
	}
	return c.run(ctx, out, "tenants", bench.Tenants{Count: c.Count, Few: c.Few, Rate: c.Rate, Duration: c.Duration.Std()})
}

// benchFeed submits a mixture of jobs.
type benchFeed struct {
	benchOptions
	URL      string       `env:"-" name:"url" placeholder:"URL" help:"API of the service to feed, such as http://127.0.0.1:8080. (a replica of its own)"`
	Rate     float64      `env:"-" default:"20" placeholder:"N" help:"How many jobs are submitted in a second; each fires a few times within minutes. (${default})"`
	Duration cli.Duration `env:"-" default:"1h" placeholder:"DURATION" help:"For how long; an interruption ends it in good order. (${default})"`
}

// Run feeds.
func (c *benchFeed) Run(ctx context.Context, out cli.Output) error {
	if err := checkRate(c.Rate, c.Duration); err != nil {
		return err
	}
	c.Callback, c.Rounds = "http", 1
	return c.run(ctx, out, "feed", bench.Feed{URL: c.URL, Rate: c.Rate, Duration: c.Duration.Std()})
}

// checkRate checks a rate and its duration.
func checkRate(rate float64, d cli.Duration) error {
	if rate <= 0 || d.Std() <= 0 || rate*d.Std().Seconds() < 1 {
		return cli.Usage(errors.New("--rate and --duration must be more than 0, and together at least one occurrence"))
	}
	return nil
}

// benchPart is a process that a bench has started.
type benchPart struct {
	Role string `arg:""`
}

// Run plays the role until standard input ends.
func (c *benchPart) Run(ctx context.Context, out cli.Output) error {
	return bench.RunPart(ctx, c.Role, os.Stdin, out.Stdout, out.Stderr)
}
