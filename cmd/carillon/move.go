package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/storeurl"
	"github.com/carillon-scheduler/carillon/store/transfer"
)

const exportHelp = "Write the content of a store to a file, to move it to another store. Stop the replicas first."

// exportCommand writes the content of a store to a file.
type exportCommand struct {
	store, output         string
	tenants               []string
	resume, whileClaiming bool
}

// Flags declares the options.
func (c *exportCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "", "`URL`: The store to export from, as for serve.")
	f.StringVar(&c.output, "output", "-",
		"`FILE`: The file to write, which must not exist; - for standard output. It has the jobs' callbacks, with "+
			"any secrets in them.")
	cli.List(f, &c.tenants, "only-tenant", "`NAME`: Export only what belongs to these tenants. (all)")
	f.BoolVar(&c.resume, "resume", false, "Resume an interrupted export to this file, if no replica has run since.")
	f.BoolVar(&c.whileClaiming, "while-claiming", false,
		"Export though replicas are running. The file may hold occurrences that they deliver, and lack changes that are "+
			"made meanwhile: do not use such an export to move.")
}

// Run exports, and prints its progress on standard error.
func (c *exportCommand) Run(ctx context.Context, in cli.Input) (err error) {
	if c.resume && c.output == "-" {
		return cli.Usage(errors.New("--resume needs --output: an export to standard output can't be resumed"))
	}
	m, err := openMove(ctx, service.OpenExisting, c.store, c.whileClaiming, in.Stderr, "exported")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.store.Close()) }()
	options := transfer.ExportOptions{
		Now: time.Now().Truncate(time.Millisecond), Source: storeurl.Address(c.store), Tenants: c.tenants,
	}
	options.Each = func(ctx context.Context, so transfer.Counts) error { return m.note(ctx, so) }
	file, err := c.open(&options)
	if err != nil {
		return err
	}
	if from := options.From; from != nil && from.Whole {
		fmt.Fprintf(in.Stderr, "%s is complete: it has %s\n", c.output, from.Counts)
		return file.Close()
	}
	to := in.Stdout
	if file != nil {
		to = file
	}
	counts, err := transfer.Export(ctx, m.store, to, options)
	if err == nil {
		err = m.idle(ctx)
	}
	if err = m.explainExport(ctx, err, file != nil); file != nil {
		if err == nil {
			err = file.Sync() // the source store may be deleted next
		}
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return err
	}
	m.sum(counts.String())
	if counts.Total() == 0 {
		nothing := "The store is empty. Is --store right?"
		if len(c.tenants) > 0 {
			nothing = "The store has nothing of these tenants. Are --store and --only-tenant right?"
		}
		fmt.Fprintln(in.Stderr, nothing)
	}
	return nil
}

// open opens the file to write, and sets the place to resume at in the options; nil for standard output.
func (c *exportCommand) open(o *transfer.ExportOptions) (*os.File, error) {
	if c.output == "-" {
		return nil, nil
	}
	if !c.resume {
		file, err := os.OpenFile(c.output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			err = fmt.Errorf("%s exists already; name another file, or resume it by --resume", c.output)
		}
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--output: %w", err))
		}
		return file, nil
	}
	file, err := os.OpenFile(c.output, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--output: %w", err))
	}
	if o.From, err = resume(file, o); err != nil {
		return nil, errors.Join(cli.Usage(fmt.Errorf("--resume: %s: %w", c.output, err)), file.Close())
	}
	return file, nil
}

// resume finds the end of an interrupted export, and truncates the file there.
func resume(file *os.File, o *transfer.ExportOptions) (*transfer.Found, error) {
	found, err := transfer.Find(file)
	if err != nil {
		return nil, err
	}
	var size int64
	if found != nil {
		switch size = found.Size; {
		case found.Source != o.Source:
			return nil, fmt.Errorf("it is an export of %s, not of %s", found.Source, o.Source)
		case !slices.Equal(found.Tenants, o.Tenants):
			return nil, fmt.Errorf("it is an export with --only-tenant=%s: resume it with that",
				strings.Join(found.Tenants, ","))
		}
	}
	if err := file.Truncate(size); err != nil {
		return nil, err
	}
	_, err = file.Seek(size, io.SeekStart)
	return found, err
}

const importHelp = "Read an export into a store. Importing it again changes nothing: run the same command again to " +
	"complete an interrupted import."

// importCommand reads an export into a store.
type importCommand struct {
	store, input  string
	whileClaiming bool
}

// Flags declares the options.
func (c *importCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "", "`URL`: The store to import into, as for serve.")
	f.StringVar(&c.input, "input", "-", "`FILE`: The export to read; - for standard input.")
	f.BoolVar(&c.whileClaiming, "while-claiming", false,
		"Import though replicas are running. They may deliver imported occurrences before the import ends; importing "+
			"again then delivers them again.")
}

// Run imports, and prints its progress on standard error.
func (c *importCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	from := os.Stdin
	if c.input != "-" {
		if from, err = os.Open(c.input); err != nil {
			return cli.Usage(fmt.Errorf("--input: %w", err))
		}
		defer func() { _ = from.Close() }()
	}
	m, err := openMove(ctx, service.OpenStore, c.store, c.whileClaiming, in.Stderr, "imported")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.store.Close()) }()
	line.Target = storeurl.Address(c.store)
	imported, err := transfer.Import(ctx, m.store, from, transfer.ImportOptions{
		Each: func(ctx context.Context, so transfer.Imported) error { return m.note(ctx, so.Counts) },
	})
	line.Changed = imported.Inserted
	if err == nil {
		err = m.idle(ctx)
	}
	_, claiming := errors.AsType[claimingError](err)
	switch {
	case claiming:
		return fmt.Errorf("replicas were started before the import had ended; doing it again may deliver again what they "+
			"have: %w", err)
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("%w. Cancel it in this store, or import into another one", err)
	case errors.Is(err, store.ErrTooLarge):
		return fmt.Errorf("%w. Cancel it in the source store, and export again; or import into another kind "+
			"of store", err)
	case errors.Is(err, transfer.ErrIncomplete):
		return fmt.Errorf("%w. Finish it by \"carillon export --resume\", and import it again before any replica runs", err)
	case ctx.Err() != nil || errors.Is(err, store.ErrUnavailable):
		return fmt.Errorf("%w\nThe imported records stay. To resume, run the same command again, before any replica runs",
			m.explain(ctx, err))
	case err != nil:
		return err
	}
	m.sum(imported.String())
	if there := imported.Total() - imported.Inserted; there > 0 {
		fmt.Fprintf(in.Stderr, "%d of these records were in the store already, or belong to no job of the export.\n", there)
	}
	return nil
}

// move is an export or an import under way.
type move struct {
	store         store.Store
	whileClaiming bool
	stderr        io.Writer
	done          string // the verb for its progress: exported or imported
	began, noted  time.Time
}

// openMove opens a store. It fails while replicas may be claiming from the store.
func openMove(ctx context.Context, open func(context.Context, string) (store.Store, error), url string,
	whileClaiming bool, stderr io.Writer,
	done string) (*move, error) {
	if url == "" {
		return nil, cli.Usagef("--store is missing: name the store, as for serve")
	}
	if service.Alone(url) {
		return nil, cli.Usagef("--store: %q is the memory of one process, which no other can reach: nothing can be %s", url,
			done)
	}
	s, err := open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	m := &move{store: s, whileClaiming: whileClaiming, stderr: stderr, done: done, began: time.Now(), noted: time.Now()}
	if err := m.idle(ctx); err != nil {
		return nil, errors.Join(m.explain(ctx, err), s.Close())
	}
	return m, nil
}

// idle returns a claimingError if replicas may be claiming, unless that is permitted.
func (m *move) idle(ctx context.Context) error {
	if m.whileClaiming {
		return nil
	}
	now, err := m.store.Now(ctx)
	if err != nil {
		return err
	}
	n, err := replicas.Count(ctx, m.store, now)
	if err != nil || n == 0 {
		return err
	}
	return claimingError(n)
}

// claimingError is the number of replicas that may be claiming.
type claimingError int

func (n claimingError) Error() string {
	return fmt.Sprintf("replicas that may be claiming from this store: %d. Stop them first; one that was killed is "+
		"counted for another half a minute. "+
		"--while-claiming ignores them, see --help", int(n))
}

// note prints the progress of the move, every second, and ends it if replicas have been started.
func (m *move) note(ctx context.Context, so fmt.Stringer) error {
	now := time.Now()
	if now.Sub(m.noted) < time.Second {
		return nil
	}
	m.noted = now
	fmt.Fprintf(m.stderr, "%s so far: %s\n", m.done, so)
	return m.idle(ctx)
}

// sum prints the totals.
func (m *move) sum(all string) {
	fmt.Fprintf(m.stderr, "%s in %s: %s\n", m.done, time.Since(m.began).Round(time.Millisecond), all)
}

// explain returns the interruption of a move as its error, instead of the failures that it causes.
func (m *move) explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// explainExport adds advice to the error of a failed export.
func (m *move) explainExport(ctx context.Context, err error, file bool) error {
	if _, claiming := errors.AsType[claimingError](err); claiming {
		return fmt.Errorf("do not use this export, since it may lack later changes: %w", err)
	}
	if err != nil && file {
		return fmt.Errorf("%w\nTo resume it, run the same command with --resume", m.explain(ctx, err))
	}
	return m.explain(ctx, err)
}
