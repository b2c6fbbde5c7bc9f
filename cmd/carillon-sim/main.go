// Carillon-sim runs whole replicas of Carillon in simulated worlds full of faults, and checks that each history keeps
// the guarantees of docs/guarantees.md. It needs the source and Go: run it in the repository, as
//
//	go run ./cmd/carillon-sim --histories 1000
//
// With --store, it runs the program itself on a real store instead, among real faults; `make chaos` does that.
//
// The same seed gives the same history. So that even the order is the same in which Go's runtime chooses among
// goroutines, channels and entries of maps, the program builds the simulation with a changed runtime, and runs each
// history in a process of its own; the first build takes some minutes. See docs/verification.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "carillon-sim:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

// options are the command line.
type options struct {
	histories, workers, repeat int
	seed                       uint64
	plan                       string
	show, quick, keep          bool
	faults                     string

	// Of a run on a real store.
	store, control, disk, program string
	minutes                       float64
}

func parse(args []string, out io.Writer) (o options, err error) {
	f := flag.NewFlagSet("carillon-sim", flag.ContinueOnError)
	f.SetOutput(out)
	f.IntVar(&o.histories, "histories", 100, "the number of histories")
	f.Uint64Var(&o.seed, "seed", 0, "the seed of the first history; the next has the next one. 0 takes one by the time")
	f.IntVar(&o.workers, "workers", runtime.NumCPU(), "the number of processes at a time; each uses one processor")
	f.StringVar(&o.plan, "plan", "", "run the plan in this file instead, such as one of sim/testdata")
	f.IntVar(&o.repeat, "repeat", 1, "run each history so many times, and fail if one differs")
	f.BoolVar(&o.show, "show", false, "print what happened in each history")
	f.BoolVar(&o.keep, "keep", false,
		"keep the least plan that breaks a guarantee as sim/testdata/seed-N.json, for the tests")
	f.BoolVar(&o.quick, "quick", false, "build with the plain runtime: sooner, but a seed may give different histories")
	f.StringVar(&o.faults, "faults", "", "seed the faults of these patches of sim/faults into the code, one by one, and "+
		"write what catches each to the table in docs/verification.md: names with commas, \"all\", or \"untried\", to go "+
		"on with a run of all")
	f.StringVar(&o.store, "store", "", "run real replicas on the store of this URL instead, which must be empty")
	f.StringVar(&o.control, "control", "", "a program that stops, starts and kills the store's server, by these words")
	f.StringVar(&o.disk, "disk", "", "a folder on a disk of its own that has the store; it is filled")
	f.StringVar(&o.program, "carillon", "", "the program of the replicas on a real store, such as one with a seeded "+
		"fault; empty for that of this repository, built with clocks that can be set")
	f.Float64Var(&o.minutes, "minutes", 2, "how long there are faults on a real store")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q is not an option; see --help", f.Arg(0))
	case o.histories < 1 && (o.histories < 0 || o.faults == ""):
		return o, errors.New("--histories must be at least 1")
	case o.workers < 1:
		return o, errors.New("--workers must be at least 1")
	case o.repeat < 1:
		return o, errors.New("--repeat must be at least 1")
	case o.minutes <= 0:
		return o, errors.New("--minutes must be more than 0")
	case o.store == "" && (o.control != "" || o.disk != ""):
		return o, errors.New("--control and --disk need --store")
	}
	switch {
	case o.seed > 0:
	case o.faults != "":
		o.seed = 1
	default:
		o.seed = uint64(time.Now().UnixNano())
	}
	if o.plan != "" {
		o.histories = 1
	}
	return o, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.store != "" {
		return onStore(ctx, out, o)
	}
	if o.faults != "" {
		return tryFaults(ctx, out, o)
	}
	built, err := build(ctx, o.quick, nil)
	if err != nil {
		return err
	}
	defer built.remove()
	return newSearch(o, built, out).run(ctx)
}
