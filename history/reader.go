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

// NewReader makes a reader of what a store holds.
func NewReader(records store.Records) *Reader { return &Reader{records, newCodec()} }

// Filter selects entries of one tenant.
type Filter struct {
	Tenant string
	// Key selects those of one job; Prefix those of the jobs whose key has it. At most one is set.
	Key, Prefix string
	// Kinds selects those of some kinds; none selects all.
	Kinds []Kind
	// About selects the entries about the occurrences of one instant, and those about no occurrence. Zero selects all.
	About time.Time
	// Destination selects the attempts at one; empty selects all.
	Destination string
	// Since and Until bound the time: from Since on, and before Until. Zero does not.
	Since, Until time.Time
	// Before selects what comes after a place; nil does not.
	Before *Place
	// Looks bounds the entries of complete runs that are looked through, roughly: see [Reading.Next]. Zero does not.
	Looks int
}

// from and to bound the names that are selected, as [sortKey] has them.
func (f *Filter) bounds() (from, to string) {
	if f.Key != "" {
		name := sortKey(job.Name{Tenant: f.Tenant, Key: f.Key})
		return name, name
	}
	from = sortKey(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	return from, from + "\xff" // no key has that byte, as all are valid UTF-8
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

// touches tells whether something may be selected of a time from one instant up to another.
func (f *Filter) touches(first, last time.Time) bool {
	return !last.Before(f.Since) && (f.Until.IsZero() || first.Before(f.Until)) &&
		(f.Before == nil || !first.After(f.Before.At))
}

// classes are those that have what is selected.
func (f *Filter) classes() (of [classes]bool) {
	for _, k := range f.Kinds {
		of[classOf(k)] = true
	}
	if len(f.Kinds) == 0 {
		of = [classes]bool{deliveries: true, others: true}
	}
	return of
}

// Reading is what a filter selects.
type Reading struct {
	// Gap is a time within which entries may be missing: some were dropped, whosever they were, or a replica died and
	// nobody knows what it had not written yet, or a job had too many. It is nil if none are in the time that is selected.
	Gap *Gap
	// Next is the place from which another reading goes on, if [Filter.Looks] has ended this one before all was read.
	Next *Place

	records store.Records
	codec   codec
	filter  Filter
	now     time.Time
	found   []Entry // so far, and not answered yet
	looked  int     // the entries that were looked through
	runs    []run   // to be read, the one that reaches furthest last
}

// Read begins to read what was recorded before. Its cost follows the number of runs that are kept, each some hundred
// bytes, and what is recent.
func (r *Reader) Read(ctx context.Context, f Filter, now time.Time) (*Reading, error) {
	s := &Reading{records: r.records, codec: r.codec, filter: f, now: now.Truncate(time.Millisecond)}
	// In this order: a run may be completed meanwhile, and then is read twice rather than not at all.
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
		if last.age > deadTime { // else it would have told that it lives
			heard := s.now.Add(-last.age)
			s.tell(Gap{heard.Add(-last.reach), heard.Add(deadTime)})
		}
	}
	slices.SortFunc(s.runs, func(a, b run) int { return cmp.Or(a.until.Compare(b.until), strings.Compare(a.id, b.id)) })
	s.sort()
	return s, nil
}

// recentPart is a recent record, so long after it was last written.
type recentPart struct {
	segment
	age time.Duration
}

// concerns tells whether a filter may select some of what was cut off.
func (c *cutOff) concerns(f *Filter) bool {
	from, to := f.bounds()
	return f.classes()[c.class%classes] && from <= c.name && c.name <= to
}

// tell notes a gap, if it is in the time that is selected.
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

// each reads all records of a collection.
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

// decode reads what is selected of a segment.
func (s *Reading) decode(record store.Record) (segment, error) {
	found, err := s.codec.decodeSegment(record.Body, &s.filter)
	if err != nil {
		return found, fmt.Errorf("%w: segment %s", err, record.Key)
	}
	found.entries = slices.DeleteFunc(found.entries, func(e Entry) bool { return !s.filter.wants(&e) })
	return found, nil
}

// mostAtOnce bounds the segments that are read by one call, and how many of them there are at first: those who want the
// newest of many entries find them in few.
const (
	fewAtOnce  = 16
	mostAtOnce = 256
)

// All reads what is selected, the newest first, as it is asked for. The last pair has an error if something could not
// be read. It is called once.
func (s *Reading) All(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for atOnce := fewAtOnce; ; atOnce = min(2*atOnce, mostAtOnce) {
			for len(s.found) > 0 {
				last := len(s.found) - 1
				if n := len(s.runs); n > 0 && !s.found[last].At.After(s.runs[n-1].until) {
					break // there may be a newer one
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

// enough tells whether as much was looked through as may be, and then where another reading goes on. Runs of several
// replicas overlap, so that it reads some of them again: each reading comes at least as far as the next run.
func (s *Reading) enough() bool {
	next := Place{At: s.runs[len(s.runs)-1].until.Add(time.Millisecond)}
	f := &s.filter
	if f.Looks == 0 || s.looked < f.Looks || f.Before != nil && next.Compare(*f.Before) >= 0 {
		return false
	}
	s.Next = &next
	return true
}

// more reads the next runs, with about so many segments.
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

// sort sorts what was found, the newest last.
func (s *Reading) sort() {
	slices.SortFunc(s.found, func(a, b Entry) int {
		if order := a.At.Compare(b.At); order != 0 {
			return order
		}
		return a.Place().Compare(b.Place())
	})
}
