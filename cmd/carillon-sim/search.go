package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/sim"
	"github.com/carillon-scheduler/carillon/sim/checker"
)

// The bounds of a search.
const (
	// longest is the time after which a history counts as one that does not end.
	longest = 5 * time.Minute
	// tries is the number of histories that are run to make a plan smaller.
	tries = 60
	// told is the interval of the lines that tell how far the search is.
	told = 10 * time.Second
)

// search runs histories, each in a process of its own, and prints its findings.
type search struct {
	options
	program

	lock   sync.Mutex
	out    io.Writer
	begun  time.Time
	done   int
	broken []uint64 // the seeds of histories that break a guarantee
	differ []uint64 // the seeds whose histories differ
	// undecided are the seeds of histories of which no order of the operations was found or excluded in time.
	undecided []uint64
	files     int
}

func newSearch(o options, p program, out io.Writer) *search {
	return &search{options: o, program: p, out: out}
}

// run runs all histories. The error tells the failures.
func (s *search) run(ctx context.Context) error {
	s.begun = time.Now()
	seeds := make(chan uint64)
	failed := make(chan error, s.workers)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	for range min(s.workers, s.histories) {
		group.Go(func() {
			for seed := range seeds {
				if err := s.try(ctx, seed); err != nil {
					failed <- err
					stop()
					return
				}
			}
		})
	}
	group.Go(func() {
		defer close(seeds)
		for i := range s.histories {
			select {
			case seeds <- s.seed + uint64(i):
			case <-ctx.Done():
				return
			}
		}
	})
	ended := make(chan struct{})
	go s.tell(ended)
	group.Wait()
	close(ended)
	close(failed)
	err := s.summary(time.Since(s.begun))
	for one := range failed {
		err = errors.Join(err, one)
	}
	if err == nil && s.done < s.histories {
		err = context.Cause(ctx)
	}
	return err
}

// summary prints the results of the histories. The error tells the failures.
func (s *search) summary(took time.Duration) (err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	fmt.Fprintf(s.out, "%d histories from seed %d in %s, %.2f per second\n",
		s.done, s.seed, took.Round(time.Second), float64(s.done)/took.Seconds())
	slices.Sort(s.broken)
	slices.Sort(s.differ)
	slices.Sort(s.undecided)
	if len(s.undecided) > 0 {
		fmt.Fprintf(s.out, "%d histories are undecided, of the seeds %d: no order of all operations was found or excluded "+
			"in time\n", len(s.undecided), s.undecided)
	}
	if len(s.broken) > 0 {
		err = fmt.Errorf("%d histories break a guarantee, of the seeds %d", len(s.broken), s.broken)
	}
	if len(s.differ) > 0 {
		err = errors.Join(err, fmt.Errorf("%d seeds gave different histories: %d", len(s.differ), s.differ))
	}
	if err == nil && s.done == s.histories {
		all := "all"
		if len(s.undecided) > 0 {
			all = "all others"
		}
		fmt.Fprintln(s.out, all, "keep all guarantees")
	}
	return err
}

// tell prints how far the search is, again and again.
func (s *search) tell(ended chan struct{}) {
	ticker := time.NewTicker(told)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		s.lock.Lock()
		rate := float64(s.done) / time.Since(s.begun).Seconds()
		line := fmt.Sprintf("%d of %d histories, %.2f per second", s.done, s.histories, rate)
		if s.done > 0 {
			left := time.Duration(float64(s.histories-s.done) / rate * float64(time.Second))
			line += fmt.Sprintf(", %s left", left.Round(time.Second))
		}
		if len(s.undecided) > 0 {
			line += fmt.Sprintf(", %d are undecided", len(s.undecided))
		}
		if len(s.broken) > 0 {
			line += fmt.Sprintf(", %d break a guarantee", len(s.broken))
		}
		fmt.Fprintln(s.out, line)
		s.lock.Unlock()
	}
}

// try runs the history of a seed, or that of the plan of the command line, and prints the guarantees that it breaks.
func (s *search) try(ctx context.Context, seed uint64) error {
	args := []string{"-sim.first=" + strconv.FormatUint(seed, 10), "-sim.show=" + strconv.FormatBool(s.show)}
	if s.plan != "" {
		file, err := filepath.Abs(s.plan)
		if err != nil {
			return err
		}
		args = append(args, "-sim.plan="+file)
	}
	var first sim.Report
	same := true
	for i := range s.repeat {
		report, err := s.one(ctx, args)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if i == 0 {
			first = report
		}
		same = same && report.Digest == first.Digest
	}
	least := first
	if len(first.Broken) > 0 && first.Plan != nil {
		least = s.minimised(ctx, first)
	}
	if least.Plan == nil && s.plan == "" { // the process ended without a report
		least.Plan = sim.NewPlan(seed)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.done++
	if !same {
		s.differ = append(s.differ, seed)
	}
	if len(first.Undecided) > 0 {
		s.undecided = append(s.undecided, seed)
	}
	if s.show {
		fmt.Fprintf(s.out, "seed %d, digest %s\n%s", seed, first.Digest, first.Timeline)
	}
	if len(first.Broken) == 0 {
		return nil
	}
	s.broken = append(s.broken, seed)
	fmt.Fprintf(s.out, "seed %d breaks a guarantee:\n", seed)
	for _, v := range first.Broken {
		fmt.Fprintf(s.out, "  %s\n", v.String())
	}
	if least.Plan != nil {
		encoded, err := json.Marshal(least.Plan)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "the least plan, for a file in sim/testdata:\n%s\n", encoded)
		for _, f := range least.Plan.Faults {
			fmt.Fprintf(s.out, "fault: %s\n", f)
		}
		if s.keep {
			file := filepath.Join(s.root, "sim", "testdata", fmt.Sprintf("seed-%d.json", least.Plan.Seed))
			if err := os.WriteFile(file, append(encoded, '\n'), 0o644); err != nil { //nolint:gosec // it is to be committed
				return err
			}
			fmt.Fprintf(s.out, "kept as %s\n", file)
		}
	}
	fmt.Fprintf(s.out, "%s\n%s\n", least.Broken[0].String(), least.Timeline)
	return nil
}

// minimised returns the report of a smaller plan that breaks the same rule.
func (s *search) minimised(ctx context.Context, first sim.Report) sim.Report {
	least := first
	sim.Minimise(first.Plan, tries, func(p *sim.Plan) bool {
		report, err := s.planned(ctx, p)
		same := err == nil && slices.ContainsFunc(report.Broken, func(v checker.Violation) bool {
			return v.Rule == first.Broken[0].Rule
		})
		if same {
			least = report
		}
		return same
	})
	return least
}

// planned runs a plan.
func (s *search) planned(ctx context.Context, p *sim.Plan) (sim.Report, error) {
	encoded, err := json.Marshal(p)
	if err != nil {
		return sim.Report{}, err
	}
	file := s.file("plan")
	defer func() { _ = os.Remove(file) }()
	if err := os.WriteFile(file, encoded, 0o600); err != nil {
		return sim.Report{}, err
	}
	return s.one(ctx, []string{"-sim.plan=" + file})
}

// file returns the name of a new file.
func (s *search) file(kind string) string {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.files++
	return filepath.Join(s.folder, fmt.Sprintf("%s-%d.json", kind, s.files))
}

// one runs a history in a process of one processor, without garbage collection: a collection takes processor time from
// the history, by real time. A process that ends without a report, or does not end, has found something too: a
// goroutine that was left over, a panic, or a loop.
func (s *search) one(ctx context.Context, args []string) (report sim.Report, err error) {
	result := s.file("report")
	defer func() { _ = os.Remove(result) }()
	limited, stop := context.WithTimeout(ctx, longest)
	defer stop()
	args = append([]string{"-test.run=^TestHistories$", "-test.timeout=0", "-sim.out=" + result}, args...)
	c := exec.CommandContext(limited, s.executable, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) } // it prints the stacks
	c.WaitDelay = 10 * time.Second
	var output bytes.Buffer
	c.Dir, c.Stdout, c.Stderr = filepath.Join(s.root, "sim"), &output, &output
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMEMLIMIT=3GiB")
	failure := c.Run()
	if ctx.Err() != nil {
		return report, nil
	}
	b, err := os.ReadFile(result)
	if errors.Is(err, os.ErrNotExist) {
		text := fmt.Sprintf("the process ended without a report: %v", failure)
		lines := strings.SplitAfterN(output.String(), "\n", 200)
		return sim.Report{
			Broken:   []checker.Violation{{Rule: "every run ends", Text: text}},
			Timeline: strings.Join(lines[:min(len(lines), 199)], ""),
		}, nil
	}
	if err != nil {
		return report, err
	}
	if err := json.Unmarshal(b, &report); err != nil {
		return report, fmt.Errorf("a history's report can't be read, is the disk full? %w\n%s", err, &output)
	}
	return report, nil
}
