// Package transfer moves the content of one store to another, of any kind, through a file. An export has one line of
// JSON for each tenant, job, pending occurrence, dead letter and check-in. The first line has the format, and the
// tenants follow. After each page of jobs and occurrences there is a line with the place from which an interrupted
// export is resumed. Check-ins come last. The last line has the counts, by which an incomplete export is recognized.
package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/checkins"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// format is the version of the lines. An export is resumed in its own format only. Format 1 has no tenants, and
// format 2 no check-ins.
const format = 3

const (
	// batch is the number of records that are read from a store, or written to it, at once. largestBatch is the number
	// of bytes of lines that are written at once. Both bound the memory of a transfer.
	batch        = 1000
	largestBatch = 8 << 20
	// longestLine bounds a line, in bytes. A job of 100,000 subscribers has a few million.
	longestLine = 256 << 20
)

var (
	// ErrFormat is returned for an export written by a newer version of Carillon.
	ErrFormat = errors.New("the export was written by a newer version of carillon")
	// ErrIncomplete is returned for an export that was interrupted or lacks some lines.
	ErrIncomplete = errors.New("the export is incomplete")
)

// Store is the part of a store that export and import need.
type Store interface {
	store.Transfer
	store.Records
}

// Counts are the numbers of records of each kind that were written or read.
type Counts struct {
	Tenants     int `json:"tenants"`
	Jobs        int `json:"jobs"`
	Occurrences int `json:"occurrences"`
	DeadLetters int `json:"deadLetters"`
	CheckIns    int `json:"checkIns,omitzero"`
}

func (c *Counts) add(r store.Document) {
	switch {
	case r.Job != nil:
		c.Jobs++
	case r.Occurrence.FailedAt.IsZero():
		c.Occurrences++
	default:
		c.DeadLetters++
	}
}

// Total returns the number of records of all kinds.
func (c Counts) Total() int { return c.Tenants + c.Jobs + c.Occurrences + c.DeadLetters + c.CheckIns }

func (c Counts) String() string {
	text := fmt.Sprintf("%s, %s, %s and %s", counted(c.Tenants, "tenant"), counted(c.Jobs, "job"),
		counted(c.Occurrences, "occurrence"), counted(c.DeadLetters, "dead letter"))
	if c.CheckIns > 0 {
		text += " and " + counted(c.CheckIns, "check-in")
	}
	return text
}

// counted puts a number before a noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// ExportOptions are the options of [Export].
type ExportOptions struct {
	// Now is the time of the export, and Source the store's address without secrets. Both are written in the first
	// line.
	Now    time.Time
	Source string
	// Tenants are those whose content is exported; none for all.
	Tenants []string
	// From is the progress of an interrupted export, see [Find]; w must continue that export. Nil begins a new export.
	From *Found
	// Each, if set, is called after each page is written, with all counts so far. An error from Each ends the export.
	Each func(ctx context.Context, so Counts) error
}

// has reports whether the export includes a tenant.
func (o *ExportOptions) has(tenant string) bool {
	return len(o.Tenants) == 0 || slices.Contains(o.Tenants, tenant)
}

// tenantOf returns the tenant to which a document belongs.
func tenantOf(r store.Document) string {
	if r.Job != nil {
		return r.Job.Tenant
	}
	return r.Occurrence.Name.Tenant
}

// Export writes the content of a store, and returns the counts, including those of a resumed export's earlier part.
// After a failure, resume it with From, or begin again.
//
// The export is a snapshot only if no replica claims from the store and no job is changed meanwhile.
func Export(ctx context.Context, from Store, w io.Writer, o ExportOptions) (Counts, error) {
	out := writer{w: bufio.NewWriterSize(w, 1<<16)}
	var at placeLine
	if o.From != nil {
		at = placeLine{After: o.From.after, Counts: o.From.Counts}
	} else {
		out.write(line{Export: &header{Format: format, At: moment(o.Now), Source: o.Source, Tenants: o.Tenants}})
	}
	if at.Tenants == 0 { // otherwise the export has them before the resumed place
		if err := exportTenants(ctx, from, &out, &at.Counts, &o); err != nil {
			return at.Counts, err
		}
	}
	for {
		records, next, err := from.Export(ctx, at.After, batch)
		if err != nil {
			return at.Counts, err
		}
		if len(records) == 0 {
			break
		}
		for _, r := range records {
			if o.has(tenantOf(r)) {
				out.write(newLine(r))
				at.add(r)
			}
		}
		at.After = next
		out.write(line{Place: &at})
		if err := out.flush(); err != nil {
			return at.Counts, err
		}
		if o.Each != nil {
			if err := o.Each(ctx, at.Counts); err != nil {
				return at.Counts, err
			}
		}
	}
	if err := exportCheckIns(ctx, from, &out, &at.Counts, &o); err != nil {
		return at.Counts, err
	}
	out.write(line{End: &at.Counts})
	return at.Counts, out.flush()
}

// exportCheckIns writes the lines of check-ins. They come after the last place, so a resumed export has them once.
func exportCheckIns(ctx context.Context, from store.Records, out *writer, so *Counts, o *ExportOptions) error {
	for after := ""; ; {
		page, next, err := checkins.List(ctx, from, after, batch, o.Now)
		if err != nil {
			return err
		}
		for _, c := range page {
			if o.has(c.Name.Tenant) {
				out.write(line{CheckIn: newCheckInLine(c)})
				so.CheckIns++
			}
		}
		if after = next; next == "" {
			return out.flush()
		}
	}
}

// exportTenants writes the lines of tenants.
func exportTenants(ctx context.Context, from store.Records, out *writer, so *Counts, o *ExportOptions) error {
	all := tenants.New(from)
	for after := ""; ; {
		page, err := all.List(ctx, after, batch)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, t := range page {
			if o.has(t.Name) {
				out.write(line{Tenant: newTenantLine(t)})
				so.Tenants++
			}
		}
		after = page[len(page)-1].Name
	}
}

// writer writes lines. It keeps the first error.
type writer struct {
	w   *bufio.Writer
	err error
}

func (w *writer) write(l line) {
	if w.err != nil {
		return
	}
	b, err := encode(l)
	if err == nil {
		_, err = w.w.Write(b)
	}
	w.err = err
}

func (w *writer) flush() error {
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// ImportOptions configures an import.
type ImportOptions struct {
	// Each, if set, is called after each batch is written, with all counts so far. An error from Each ends the import.
	Each func(ctx context.Context, so Imported) error
}

// Imported has the counts of an import.
type Imported struct {
	// Counts are the records that were read.
	Counts
	// Inserted is the number of records that were not in the store before.
	Inserted int
}

// Import reads an export, inserts its records into a store, and returns the counts. A tenant known to the store keeps
// its settings. After a failure, repeat Import with the same export before a replica claims from the store. An error
// names the line that can't be read. If the export is incomplete, Import inserts its records and returns
// [ErrIncomplete].
func Import(ctx context.Context, to Store, r io.Reader, o ImportOptions) (Imported, error) {
	m := importer{to: to, each: o.Each, lines: newLines(r)}
	first, err := m.lines.next()
	if errors.Is(err, io.EOF) {
		return m.done, fmt.Errorf("%w: it is empty", ErrIncomplete)
	}
	if err == nil {
		_, err = decodeHeader(first)
	}
	if err != nil {
		return m.done, m.lines.fault(err)
	}
	for {
		end, err := m.line(ctx)
		if end || err != nil {
			return m.done, err
		}
	}
}

// importer is an import under way.
type importer struct {
	to    Store
	each  func(ctx context.Context, so Imported) error
	lines *lines

	read    Counts
	tenants []job.Tenant // pending, as are the check-ins and the records
	come    []checkins.CheckIn
	pending []store.Document
	size    int // of the pending lines
	done    Imported
}

// line imports the next line, and reports whether it was the last.
func (m *importer) line(ctx context.Context) (end bool, err error) {
	b, err := m.lines.next()
	if errors.Is(err, io.EOF) || err == nil && !bytes.HasSuffix(b, []byte("\n")) {
		if err := m.flush(ctx); err != nil {
			return false, err
		}
		return false, fmt.Errorf("%w: it ends after line %d; the lines before were imported",
			ErrIncomplete, m.lines.ended)
	}
	if err != nil {
		return false, m.lines.fault(err)
	}
	l, err := decode(b)
	if err != nil {
		return false, m.lines.fault(err)
	}
	switch {
	case l.Tenant != nil:
		t, err := l.Tenant.tenant()
		if err != nil {
			return false, m.lines.fault(err)
		}
		m.read.Tenants++
		m.tenants = append(m.tenants, t)
		return false, m.flushIfLarge(ctx, len(b))
	case l.CheckIn != nil:
		c, err := l.CheckIn.checkIn()
		if err != nil {
			return false, m.lines.fault(err)
		}
		m.read.CheckIns++
		m.come = append(m.come, c)
		return false, m.flushIfLarge(ctx, len(b))
	case l.Job != nil || l.Occurrence != nil:
		r, err := l.record()
		if err != nil {
			return false, m.lines.fault(err)
		}
		m.read.add(r)
		m.pending = append(m.pending, r)
		return false, m.flushIfLarge(ctx, len(b))
	case l.Place != nil:
		return false, m.check(l.Place.Counts)
	case l.End != nil:
		return true, m.end(ctx, *l.End)
	default:
		return false, m.lines.fault(errors.New("another export begins"))
	}
}

// check compares the counts with those of the export.
func (m *importer) check(want Counts) error {
	if m.read != want {
		return m.lines.fault(fmt.Errorf("%w: there should be %s before it, and there are %s", ErrIncomplete, want, m.read))
	}
	return nil
}

// end inserts the remaining records, and checks that no record is missing and no line follows.
func (m *importer) end(ctx context.Context, want Counts) error {
	if err := m.check(want); err != nil {
		return err
	}
	if err := m.flush(ctx); err != nil {
		return err
	}
	if _, err := m.lines.next(); !errors.Is(err, io.EOF) {
		return m.lines.fault(errors.New("something follows the end"))
	}
	return nil
}

// flushIfLarge counts one more line of a size, and inserts the pending records if they fill a batch.
func (m *importer) flushIfLarge(ctx context.Context, size int) error {
	if m.size += size; len(m.tenants)+len(m.come)+len(m.pending) < batch && m.size < largestBatch {
		return nil
	}
	return m.flush(ctx)
}

// flush inserts the pending records.
func (m *importer) flush(ctx context.Context) error {
	if len(m.tenants) > 0 {
		n, err := tenants.New(m.to).Meet(ctx, m.tenants)
		m.done.Inserted += n
		if err != nil {
			return err
		}
	}
	if len(m.come) > 0 {
		n, err := checkins.Keep(ctx, m.to, m.come, time.Now().UTC().Truncate(time.Millisecond))
		m.done.Inserted += n
		if err != nil {
			return err
		}
	}
	if len(m.pending) > 0 {
		n, err := m.to.Import(ctx, m.pending)
		m.done.Inserted += n
		if err != nil {
			return err
		}
	}
	if m.done.Counts == m.read {
		return nil
	}
	m.done.Counts = m.read
	clear(m.pending) // so that they are not held until the next batch is as large
	m.tenants, m.come, m.pending, m.size = m.tenants[:0], m.come[:0], m.pending[:0], 0
	if m.each != nil {
		return m.each(ctx, m.done)
	}
	return nil
}
