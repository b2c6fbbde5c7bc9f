package history

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Reader finds entries. It is safe for concurrent use.
type Reader struct {
	records store.Records
	codec   codec
}

// NewReader returns a reader of a store's history.
func NewReader(records store.Records) *Reader { return &Reader{records, newCodec()} }

// Filter selects entries of one tenant.
type Filter struct {
	Tenant string
	// Key selects the entries of one job, and Prefix those of jobs whose key begins with it. At most one is set.
	Key, Prefix string
	// Kinds selects entries by kind; empty selects all.
	Kinds []Kind
	// About selects the entries about the occurrences of one instant, and those about no occurrence. Zero selects all.
	About time.Time
	// Destination selects the attempts at one destination; empty selects all.
	Destination string
	// Since and Until select entries from Since on and before Until. A zero time is no bound.
	Since, Until time.Time
	// Before selects entries that are older than a place. Nil selects all.
	Before *Place
	// Looks is a rough bound of the entries of complete runs that a reading decodes: see [Reading.Next]. Zero is no bound.
	Looks int
}

// bounds returns the first and the last name that may be selected, as [sortKey] has them.
func (f *Filter) bounds() (from, to string) {
	if f.Key != "" {
		name := sortKey(job.Name{Tenant: f.Tenant, Key: f.Key})
		return name, name
	}
	from = sortKey(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	return from, from + "\xff" // no key has that byte: keys are valid UTF-8
}

func (f *Filter) wantsName(n job.Name) bool {
	return n.Tenant == f.Tenant && (f.Key == "" || n.Key == f.Key) && strings.HasPrefix(n.Key, f.Prefix)
}

func (f *Filter) wantsKind(k Kind) bool { return len(f.Kinds) == 0 || slices.Contains(f.Kinds, k) }

func (f *Filter) wants(e *Entry) bool {
	return f.wantsKind(e.Kind) &&
		(f.About.IsZero() || e.Instant.IsZero() || e.Instant.Equal(f.About)) &&
		(f.Destination == "" || e.Destination == f.Destination) &&
		!e.At.Before(f.Since) && (f.Until.IsZero() || e.At.Before(f.Until)) &&
		(f.Before == nil || e.Place().Compare(*f.Before) < 0)
}

// touches reports whether the filter may select entries between two times.
func (f *Filter) touches(first, last time.Time) bool {
	return !last.Before(f.Since) && (f.Until.IsZero() || first.Before(f.Until)) &&
		(f.Before == nil || !first.After(f.Before.At))
}

// classes returns the classes that may have selected entries.
func (f *Filter) classes() (of [classes]bool) {
	for _, k := range f.Kinds {
		of[classOf(k)] = true
	}
	if len(f.Kinds) == 0 {
		of = [classes]bool{deliveries: true, others: true}
	}
	return of
}

// Reading is one pass over the entries that a filter selects, the newest first.
type Reading struct {
	// Gap is a time within which entries may be missing: entries of any tenant were dropped, a replica died with unwritten
	// entries, or a selected job had too many. It is nil if there is no gap in the selected time.
	Gap *Gap
	// Next is where another reading continues, if [Filter.Looks] has ended this one early. It is nil otherwise.
	Next *Place

	records store.Records
	codec   codec
	filter  Filter
	now     time.Time
	found   []Entry // decoded and not yet returned, the newest last
	looked  int     // the number of entries of complete runs that were decoded
	runs    []run   // runs to be read, the one with the latest end last
}

// Read begins a reading of the entries that were recorded before now. Its cost follows the number of kept runs, some
// hundred bytes each, and of recent entries.
func (r *Reader) Read(ctx context.Context, f Filter, now time.Time) (*Reading, error) {
	s := &Reading{records: r.records, codec: r.codec, filter: f, now: now.Truncate(time.Millisecond)}
	// Recent records come first: a run that is completed meanwhile is then read twice, rather than missed.
	recent := make(map[string][]recentPart)
	err := s.each(ctx, recentCollection, func(record store.Record) error {
		found, err := s.decode(record)
		age := record.Version.Age(s.now)
		recent[runOf(record.Key)] = append(recent[runOf(record.Key)], recentPart{found, age})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, runCollection, func(record store.Record) error {
		complete, err := s.codec.decodeRun(record.Key, record.Body)
		if err != nil {
			return fmt.Errorf("%w: run %s", err, record.Key)
		}
		delete(recent, record.Key)
		s.tell(complete.gap)
		for _, c := range complete.cuts {
			if c.concerns(&f) {
				s.tell(c.gap)
			}
		}
		if f.touches(complete.first, complete.until) {
			s.runs = append(s.runs, complete)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, parts := range recent {
		last := parts[0]
		for _, part := range parts {
			s.tell(part.gap)
			s.found = append(s.found, part.entries...)
			if part.age < last.age {
				last = part
			}
		}
		if last.age > deadTime { // a live writer refreshes its record more often
			heard := s.now.Add(-last.age)
			s.tell(Gap{heard.Add(-last.reach), heard.Add(deadTime)})
		}
	}
	slices.SortFunc(s.runs, func(a, b run) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.id, b.id)) })
	s.sort()
	return s, nil
}

// recentPart is a recent record, with the time since it was last written.
type recentPart struct {
	segment
	age time.Duration
}

// concerns reports whether a filter may select entries that were cut off.
func (c *cutOff) concerns(f *Filter) bool {
	from, to := f.bounds()
	return f.classes()[c.class%classes] && from <= c.name && c.name <= to
}

// tell notes a gap if it overlaps the selected time.
func (s *Reading) tell(g Gap) {
	f := &s.filter
	if g.none() || g.Until.Before(f.Since) || !f.Until.IsZero() && !g.From.Before(f.Until) {
		return
	}
	if s.Gap != nil {
		g = g.with(*s.Gap)
	}
	s.Gap = &g
}

// readTimeout bounds one call to the store.
const readTimeout = 10 * time.Second

func (s *Reading) read(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return s.records.Records(ctx, filter)
}

// each calls do with each record of a collection.
func (s *Reading) each(ctx context.Context, collection string, do func(store.Record) error) error {
	filter := store.RecordFilter{Collection: collection, Limit: 256, Now: s.now}
	for {
		page, err := s.read(ctx, filter)
		if err != nil {
			return err
		}
		for _, record := range page {
			if err := do(record); err != nil {
				return err
			}
		}
		if len(page) < filter.Limit {
			return nil
		}
		filter.After = page[len(page)-1].Key
	}
}

// decode reads the selected entries of a segment.
func (s *Reading) decode(record store.Record) (segment, error) {
	found, err := s.codec.decodeSegment(record.Body, &s.filter)
	if err != nil {
		return found, fmt.Errorf("%w: segment %s", err, record.Key)
	}
	found.entries = slices.DeleteFunc(found.entries, func(e Entry) bool { return !s.filter.wants(&e) })
	return found, nil
}

// fewAtOnce and mostAtOnce are the numbers of segments in the first call and in the largest one. The first call is
// small, since most readers want only the newest entries.
const (
	fewAtOnce  = 16
	mostAtOnce = 256
)

// All returns the selected entries, the newest first. It reads from the store as the caller iterates. If a read fails,
// the last pair has the error. Call it once.
func (s *Reading) All(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for atOnce := fewAtOnce; ; atOnce = min(2*atOnce, mostAtOnce) {
			for len(s.found) > 0 {
				last := len(s.found) - 1
				if n := len(s.runs); n > 0 && !s.found[last].At.After(s.runs[n-1].until) {
					break // a run may have a newer entry
				}
				e := s.found[last]
				s.found = s.found[:last]
				if !yield(e, nil) {
					return
				}
			}
			if len(s.runs) == 0 || s.enough() {
				return
			}
			if err := s.more(ctx, atOnce); err != nil {
				yield(Entry{}, err)
				return
			}
		}
	}
}

// enough reports whether the reading has reached [Filter.Looks], and sets Next if so. Runs of several replicas overlap,
// so the next reading decodes some entries again. To advance, each reading gets at least to the next run.
func (s *Reading) enough() bool {
	next := Place{At: s.runs[len(s.runs)-1].until.Add(time.Millisecond)}
	f := &s.filter
	if f.Looks == 0 || s.looked < f.Looks || f.Before != nil && next.Compare(*f.Before) >= 0 {
		return false
	}
	s.Next = &next
	return true
}

// more reads the next runs: about atOnce segments.
func (s *Reading) more(ctx context.Context, atOnce int) error {
	var keys []string
	from, to := s.filter.bounds()
	of := s.filter.classes()
	for len(s.runs) > 0 && len(keys) < atOnce {
		next := s.runs[len(s.runs)-1]
		s.runs = s.runs[:len(s.runs)-1]
		keys = append(keys, next.holding(of, from, to)...)
	}
	for some := range slices.Chunk(keys, mostAtOnce) {
		records, err := s.read(ctx, store.RecordFilter{
			Collection: segmentCollection, Keys: some, Limit: len(some), Now: s.now,
		})
		if err != nil {
			return err
		}
		for _, record := range records {
			found, err := s.decode(record)
			if err != nil {
				return err
			}
			s.looked += found.rows
			s.found = append(s.found, found.entries...)
		}
	}
	s.sort()
	return nil
}

// sort sorts the found entries, the newest last.
func (s *Reading) sort() {
	slices.SortFunc(s.found, func(a, b Entry) int {
		if order := a.At.Compare(b.At); order != 0 {
			return order
		}
		return a.Place().Compare(b.Place())
	})
}
