package history

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// over reports whether a run is to be completed.
func (r *running) over(now time.Time) bool {
	return r.count >= mostInRun || len(r.full) >= mostParts || r.count > 0 && now.Sub(r.begun) >= longestRun
}

// complete replaces the recent records of a run by sorted segments, and begins the next run unless the writer was
// closed. If that fails, the recent records stay.
func (w *Writer) complete(ctx context.Context, ended bool) {
	r := w.run
	if w.begin(); !ended { // before the old run ends, so that the store always has a run
		w.write(ctx)
	}
	changes, ok := w.sorted(&r)
	if !ok || !w.store(ctx, changes) { // on failure, readers use the recent records
		return
	}
	changes = nil
	for i := range len(r.full) + 1 {
		changes = append(changes, w.change(recentCollection, partKey(r.id, i)))
	}
	w.store(ctx, changes)
}

// sorted returns the changes that write the segments of a run and its record. The run's record comes last: once it
// exists, readers read the segments in place of the recent records.
func (w *Writer) sorted(r *running) (changes []store.RecordChange, ok bool) {
	described := run{id: r.id, gap: r.gap}
	all := slices.Grow(slices.Clone(r.tail), r.count-len(r.tail))
	for _, body := range r.full {
		s, err := w.codec.decodeSegment(body, nil)
		if err != nil {
			return nil, false
		}
		for i := range s.entries {
			all = append(all, &s.entries[i])
		}
		runtime.Gosched() // deliveries have precedence
		described.gap = described.gap.with(s.gap)
	}
	if len(all) == 0 && described.gap.none() {
		return nil, true
	}
	sortByJob(all)
	for i, e := range all {
		if i == 0 || e.At.Before(described.first) {
			described.first = e.At
		}
		if e.At.After(described.until) {
			described.until = e.At
		}
	}
	longest := time.Duration(0)
	for keep, byClass := range w.byKeep(all) {
		longest = max(longest, keep)
		for c, rows := range byClass {
			rows, cuts := w.kept.bound(rows, class(c), w.cfg.Now()) //nolint:gosec // there are two classes
			described.cuts = append(described.cuts, cuts...)
			g := group{class: class(c)} //nolint:gosec // as above
			before := ""
			for len(rows) > 0 {
				n := min(len(rows), perSegment)
				body := w.codec.encodeSegment(rows[:n], margin{})
				for len(body) > longestBody && n > 1 {
					n /= 2
					body = w.codec.encodeSegment(rows[:n], margin{})
				}
				at := ""
				if len(g.at) > 0 {
					at = separator(before, sortKey(rows[0].Name))
				}
				g.at = append(g.at, at)
				changes = append(changes, w.put(segmentCollection, partKey(r.id, len(changes)), body, described.until, keep))
				before = sortKey(rows[n-1].Name)
				rows = rows[n:]
				runtime.Gosched()
			}
			described.groups = append(described.groups, g)
		}
	}
	newest := described.until
	if described.gap.Until.After(newest) {
		newest = described.gap.Until
	}
	if longest == 0 {
		longest = w.cfg.Keep
	}
	return append(changes, w.put(runCollection, r.id, w.codec.encodeRun(&described), newest, longest)), true
}

// byKeep groups entries by retention and class. It leaves out entries whose policies no longer keep them.
func (w *Writer) byKeep(entries []*Entry) map[time.Duration]*[classes][]*Entry {
	groups := make(map[time.Duration]*[classes][]*Entry)
	all := policies{ask: w.cfg.PolicyOf}
	for _, e := range entries {
		p := all.of(e.Name.Tenant)
		if !p.wants(e.Kind) {
			continue
		}
		g := groups[p.Keep]
		if g == nil {
			g = &[classes][]*Entry{}
			groups[p.Keep] = g
		}
		c := classOf(e.Kind)
		g[c] = append(g[c], e)
	}
	return groups
}

// tally counts the entries of jobs that have many, so that no job fills the store.
type tally struct {
	most int       // entries of one job and class in an hour
	hour time.Time // the hour that is counted
	of   map[tallied]int
}

type tallied struct {
	name  job.Name
	class class
}

// bound leaves out the oldest entries of jobs that have too many. The rows are of one class, and sorted by job.
func (t *tally) bound(rows []*Entry, c class, now time.Time) (kept []*Entry, cuts []cutOff) {
	if hour := now.Truncate(time.Hour); hour != t.hour {
		t.hour, t.of = hour, make(map[tallied]int)
	}
	kept = rows[:0]
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].Name == rows[0].Name {
			n++
		}
		of := rows[:n]
		rows = rows[n:]
		if n >= min(countsFrom, t.most) {
			who := tallied{of[0].Name, c}
			free := max(0, min(n, t.most-t.of[who]))
			if t.of[who] += free; free < n {
				cuts = append(cuts, cutOff{sortKey(who.name), c, Gap{of[n-1].At, of[free].At}})
				of = of[:free]
			}
		}
		kept = append(kept, of...)
	}
	return kept, cuts
}
