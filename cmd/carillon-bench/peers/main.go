// Command peers runs other schedulers on the servers of Carillon's bench, with the same work, in turns with Carillon's
// bench itself, so that one table compares them. Each stands for its kind: River is a job queue on PostgreSQL and asynq
// one on Redis; table and zset are the loops that one writes instead of using any.
//
// It is a module of its own, so that Carillon does not depend on their modules. The names of its schemas and keys are
// its own. They must not exist before a run, and are deleted at its end.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// command runs the measurements, or the worker that a measurement kills.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "worker" {
		return runWorker(ctx, args[1:])
	}
	return run(ctx, args, stdout, stderr)
}

// options choose the measurements and the servers.
type options struct {
	postgres, redis string // URLs of the servers
	fsync           string // Redis' appendfsync; empty to leave it alone
	carillon        string // the program carillon-bench; empty to leave it out
	service         string // the program carillon; empty to leave its conduct out
	conduct         bool
	killed          int           // the number of jobs of the worker that is killed
	patience        time.Duration // the limit for their completion after that
	modes           []string
	subjects        []string
	count           int
	limit           time.Duration
	rate            float64
	duration        time.Duration
	idle            time.Duration
	waiting         int
	payload         int
	rounds          int
	force           bool
	// lead is the time before the first instant of a steady round. Settle is the time that a worker runs before it is
	// watched while idle.
	lead, settle time.Duration
}

// The modes and the subjects, in the order of measurements and tables.
var (
	allModes    = []string{"drain", "steady", "idle"}
	allSubjects = []string{"carillon-postgres", "river", "table", "carillon-redis", "asynq", "zset"}
)

// run measures and prints the reports. After an error, it prints the figures measured so far.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := options{lead: 5 * time.Second, settle: 3 * time.Second}
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.postgres, "postgres", "", "`URL` of a PostgreSQL database, in which schemas are made and dropped")
	f.StringVar(&o.redis, "redis", "", "`URL` of a Redis server")
	f.StringVar(&o.carillon, "carillon", "", "`path` of the program carillon-bench, to measure Carillon in the same run")
	f.StringVar(&o.service, "service", "", "`path` of the program carillon, to observe its conduct")
	f.BoolVar(&o.conduct, "conduct", false, "also kill workers, cancel jobs, and look at nights of clock changes; takes "+
		"some minutes")
	f.IntVar(&o.killed, "killed", 400, "conduct: how `many` jobs a worker has that is killed")
	f.DurationVar(&o.patience, "patience", 3*time.Minute, "conduct: how `long` these may take after that")
	modes := f.String("modes", strings.Join(allModes, ","), "which to `measure`")
	subjects := f.String("subjects", strings.Join(allSubjects, ","), "`whom` to measure; carillon-... needs --carillon")
	f.IntVar(&o.count, "count", 300_000, "drain: how `many` jobs are due")
	f.DurationVar(&o.limit, "limit", 2*time.Minute, "drain: how `long` a peer may take; if it takes longer, its rate is "+
		"that until then")
	f.Float64Var(&o.rate, "rate", 2000, "steady: how `many` fall due in a second")
	f.DurationVar(&o.duration, "duration", time.Minute, "steady: for how `long`")
	f.DurationVar(&o.idle, "idle-duration", 20*time.Second, "idle: for how `long`")
	f.IntVar(&o.waiting, "waiting", 10_000, "idle: how `many` jobs wait meanwhile")
	f.StringVar(&o.fsync, "redis-fsync", "", "`when` the Redis server syncs: always, everysec or no; set for the run, "+
		"and set back (as it is)")
	f.IntVar(&o.payload, "payload", 200, "how many `bytes` each job has; at least 40")
	f.IntVar(&o.rounds, "rounds", 3, "how `often` everything is measured; the table shows medians")
	f.BoolVar(&o.force, "force", false, "delete what an earlier run has left")
	asJSON := f.Bool("json", false, "print the reports as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err error
	if o.modes, err = choose("--modes", *modes, allModes); err != nil {
		return err
	}
	if o.subjects, err = choose("--subjects", *subjects, allSubjects); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.killed < 4 || o.patience <= 0:
		return errors.New("--killed or --patience is too small")
	case o.count < 1 || o.rounds < 1 || o.waiting < 1 || o.rate <= 0 || o.payload < 40 || o.duration <= 0 || o.idle <= 0 ||
		o.limit <= 0:
		return errors.New("a number is too small")
	case int(o.rate*o.duration.Seconds()) < 1:
		return errors.New("--rate and --duration must give at least one job")
	}
	if o.carillon == "" {
		o.subjects = slices.DeleteFunc(o.subjects, func(s string) bool { return strings.HasPrefix(s, "carillon") })
	}
	restore, err := setFsync(ctx, &o)
	if err != nil {
		return err
	}
	reports, err := compare(ctx, o, stderr)
	var all []conduct
	if o.conduct && err == nil {
		all, err = observeAll(ctx, &o, stderr)
	}
	err = errors.Join(err, restore(context.WithoutCancel(ctx)))
	if len(reports) > 0 {
		if *asJSON {
			e := json.NewEncoder(stdout)
			e.SetIndent("", "  ")
			err = errors.Join(err, e.Encode(reports))
		} else {
			err = errors.Join(err, writeTables(stdout, reports))
		}
	}
	if len(all) > 0 && !*asJSON {
		err = errors.Join(err, writeSummary(stdout, reports, all, &o))
	}
	return err
}

// choose parses a list of some of the given names, and returns them in the given order.
func choose(option, list string, from []string) ([]string, error) {
	asked := strings.Split(list, ",")
	for _, name := range asked {
		if !slices.Contains(from, name) {
			return nil, fmt.Errorf("%s: there is no %q; there are %s", option, name, strings.Join(from, ", "))
		}
	}
	var chosen []string
	for _, name := range from {
		if slices.Contains(asked, name) {
			chosen = append(chosen, name)
		}
	}
	return chosen, nil
}
