// Package bench measures Carillon: how many occurrences it fires and takes in a second, how late they are, what it
// costs while nothing is due. What a figure is worth shows only beside what the machine could do at best, so that is
// measured in the same run, in turns: the store's bare client, a bare HTTP client, a bare publisher. The ratios can be
// compared between machines; the absolute figures can't.
//
// A replica, the receiver of webhooks and whoever submits are processes of their own, as they are in life (part.go).
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

// Setup is what all modes share.
type Setup struct {
	// Store is the URL of the store to measure on; empty for an SQLite file of its own, which is deleted at the end.
	Store string
	// Callback is how occurrences are fired: discard, http, rabbitmq or kafka.
	Callback string
	// RabbitmqURL and KafkaBrokers are needed for callbacks of these types.
	RabbitmqURL  string
	KafkaBrokers []string
	// Concurrency is how many callbacks each replica has under way at most; more than zero.
	Concurrency int
	// History is how long the replicas keep history; empty for the service's default.
	History string
	// Payload is how many bytes each occurrence delivers; at least 40.
	Payload int
	// Rounds is how often each measurement is made; at least 1.
	Rounds int
	// Profile begins the names of the files for profiles of the replicas' CPU time, those that only take submissions
	// with "api" in their names; empty for none.
	Profile string
	// Secure has the API ask for keys, and the replicas sign the deliveries of the default tenant.
	Secure bool
	// Force measures on a store that holds jobs already.
	Force bool

	// Part is the command line that runs [RunPart] in a process of its own.
	Part []string
	// Progress is told what is under way, a line at a time.
	Progress io.Writer
}

// DiscardType is the callback type that does nothing, which only replicas have that a bench has started.
const DiscardType = "discard"

// keyPrefix begins the keys of all jobs that a bench submits.
const keyPrefix = "carillon-bench-"

// Mode is one of the things to measure.
type Mode interface {
	// Effort is what it takes to measure it in so many rounds.
	Effort(rounds int) Effort
	// Run measures it, and adds to the report.
	Run(ctx context.Context, b *Bench) error
}

// Run says how long one mode takes, measures it, and cleans up what that has made. The report holds what was measured
// before an error, too.
func Run(ctx context.Context, setup Setup, name string, mode Mode) (report Report, err error) {
	b := &Bench{Setup: setup, started: time.Now(), tenants: map[string]bool{job.DefaultTenant: true}}
	b.report = newReport(name, setup)
	dir, err := os.MkdirTemp("", "carillon-bench-")
	if err != nil {
		return b.report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if b.Store == "" {
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
		err = errors.Join(err, b.stopParts(), b.clean(ctx), b.unsecure(ctx))
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
	store    store.Store // to look into and to clean up; nothing is measured by it
	parts    []*part
	security security
	tenants  map[string]bool // that the bench has submitted for
	fired    int             // replicas started, to fire
	filled   int             // replicas started, to take submissions only
	report   Report
	started  time.Time
}

// ErrNotEmpty is answered for a store that holds jobs, where a bench would be in the way of them and they in its.
var ErrNotEmpty = errors.New("the store is not empty")

// checkEmpty refuses a store that holds anything, unless that is wanted.
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

// clean deletes all jobs that the bench has submitted, and their dead letters.
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

// progress tells what is under way.
func (b *Bench) progress(format string, args ...any) {
	if b.Progress != nil {
		fmt.Fprintf(b.Progress, "%6.1fs  %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
	}
}

// storeKind is the kind of store that is measured.
func storeKind(rawURL string) string {
	if rawURL == "" {
		return "sqlite"
	}
	return service.StoreKind(rawURL)
}
