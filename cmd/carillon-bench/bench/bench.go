// Package bench measures Carillon: the rates at which it fires and accepts occurrences, their deviations, and the cost
// of an idle replica. A figure means little without the limit of the machine, so the same run measures that too, in
// turns: with a bare client of the store, a bare HTTP client, or a bare publisher. Ratios can be compared between
// machines; absolute figures can't.
//
// Replicas, the receiver of webhooks and the submitting client are separate processes, as in production (part.go).
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// Setup holds the options of all modes.
type Setup struct {
	// Store is the URL of the store. If it is empty, the bench uses a temporary SQLite file.
	Store string
	// Callback is the type of the callbacks: discard, http, rabbitmq or kafka.
	Callback string
	// RabbitmqURL and KafkaBrokers are required for callbacks of these types.
	RabbitmqURL  string
	KafkaBrokers []string
	// Concurrency is the number of slots of each replica; more than zero.
	Concurrency int
	// History is the retention of the replicas' history; empty for the service's default.
	History string
	// Payload is the number of bytes in each delivery; at least 40.
	Payload int
	// Rounds is the number of times that each measurement is made; at least 1.
	Rounds int
	// Profile is the prefix of the files for CPU profiles of the replicas; empty for none. The files of replicas that
	// only accept submissions have "api" in their names.
	Profile string
	// Secure makes the API require keys, and the replicas sign the deliveries of the default tenant.
	Secure bool
	// Force allows a store that already holds jobs.
	Force bool

	// Part is the command line of a process that calls [RunPart].
	Part []string
	// Progress receives a line for each step.
	Progress io.Writer
}

// DiscardType is a callback type that does nothing. Only the bench's own replicas have it.
const DiscardType = "discard"

// keyPrefix is the prefix of the keys of all jobs that the bench submits.
const keyPrefix = "carillon-bench-"

// Mode is a kind of measurement.
type Mode interface {
	// Effort estimates the time and the occurrences that a number of rounds takes.
	Effort(rounds int) Effort
	// Run makes the measurement and adds its figures to the report.
	Run(ctx context.Context, b *Bench) error
}

// Run prints the effort of a mode, measures it, and deletes everything that the measurement created. After an error,
// the report contains the figures measured so far.
func Run(ctx context.Context, setup Setup, name string, mode Mode) (report Report, err error) {
	b := &Bench{Setup: setup, started: time.Now(), tenants: map[string]bool{job.DefaultTenant: true}}
	b.report = newReport(name, setup)
	dir, err := os.MkdirTemp("", "carillon-bench-")
	if err != nil {
		return b.report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	own := b.Store == ""
	if own {
		b.Store = "sqlite:" + filepath.Join(dir, "bench.db")
	}
	if b.store, err = service.OpenStore(ctx, b.Store); err != nil {
		return b.report, fmt.Errorf("--store: %w", err)
	}
	defer func() { err = errors.Join(err, b.store.Close()) }()
	if err := b.checkEmpty(ctx); err != nil {
		return b.report, err
	}
	defer func() { // also after an error or an interruption
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
		defer cancel()
		err = errors.Join(err, b.stopParts())
		if !own { // a store of its own goes with its directory
			err = errors.Join(err, b.clean(ctx))
		}
		err = errors.Join(err, b.unsecure(ctx))
		b.report.Seconds = time.Since(b.started).Seconds()
		report = b.report
	}()
	if b.Secure {
		if err := b.secure(ctx, dir); err != nil {
			return b.report, err
		}
	}
	b.progress("%s", mode.Effort(b.Rounds))
	return b.report, mode.Run(ctx, b)
}

// Bench is a run of one mode.
type Bench struct {
	Setup
	store    store.Store // to check and to clean up; not used for measurements
	parts    []*part
	security security
	tenants  map[string]bool // with jobs of this bench
	fired    int             // number of replicas started to fire
	filled   int             // number of replicas started only to accept submissions
	report   Report
	started  time.Time
}

// ErrNotEmpty is the error for a store that holds jobs: the bench and these jobs would delay each other.
var ErrNotEmpty = errors.New("the store is not empty")

// checkEmpty returns an error if the store is not empty, unless Force is set.
func (b *Bench) checkEmpty(ctx context.Context) error {
	if b.Force {
		return nil
	}
	jobs, err := b.store.Jobs(ctx, store.JobFilter{Tenant: job.DefaultTenant, Limit: 1})
	if err != nil {
		return err
	}
	pending, err := b.store.DueLanes(ctx, store.DueParams{Until: time.Now().AddDate(1000, 0, 0), Limit: 1})
	if err != nil {
		return err
	}
	dead, err := b.store.DeadLetters(ctx, store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 1, Brief: true})
	if err != nil {
		return err
	}
	if len(jobs) > 0 || len(pending.Lanes) > 0 || len(dead) > 0 {
		return fmt.Errorf("%w: name one that is, or say --force if what it holds may be delayed by what is measured",
			ErrNotEmpty)
	}
	running, err := replicas.Count(ctx, b.store, time.Now())
	if err != nil {
		return err
	}
	if running > 0 {
		return fmt.Errorf("%d replicas are claiming from this store; stop them (one that was killed is forgotten within two "+
			"minutes), or say --force", running)
	}
	return nil
}

// clean deletes all jobs of this bench, and their dead letters.
func (b *Bench) clean(ctx context.Context) error {
	for tenant := range b.tenants {
		if err := errors.Join(b.cleanJobs(ctx, tenant), b.cleanDeadLetters(ctx, tenant)); err != nil {
			return fmt.Errorf("clean up: %w", err)
		}
	}
	return nil
}

func (b *Bench) cleanJobs(ctx context.Context, tenant string) error {
	for {
		found, err := b.store.Jobs(ctx, store.JobFilter{Tenant: tenant, Prefix: keyPrefix, Limit: 1000})
		if err != nil || len(found) == 0 {
			return err
		}
		names := make([]job.Name, len(found))
		for i := range found {
			names[i] = found[i].Name
		}
		if _, err := b.store.Cancel(ctx, names, store.Asked{Now: time.Now()}); err != nil {
			return err
		}
	}
}

func (b *Bench) cleanDeadLetters(ctx context.Context, tenant string) error {
	for {
		found, err := b.store.DeadLetters(ctx, store.DeadLetterFilter{Tenant: tenant, Prefix: keyPrefix, Limit: 1000,
			Brief: true})
		if err != nil || len(found) == 0 {
			return err
		}
		ids := make([]job.ID, len(found))
		for i := range found {
			ids[i] = found[i].ID
		}
		if _, err := b.store.SettleDead(ctx, store.DeadSettlement{Tenant: tenant, IDs: ids,
			Outcome: store.Discard}); err != nil {
			return err
		}
	}
}

// progress reports a step.
func (b *Bench) progress(format string, args ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "%6.1fs  %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
	}
}

// storeKind returns the kind of the measured store.
func storeKind(rawURL string) string {
	if rawURL == "" {
		return "sqlite"
	}
	return service.StoreKind(rawURL)
}
