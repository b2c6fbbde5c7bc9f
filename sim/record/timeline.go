package record

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Timeline tells the events of a run, in the order of time, as far as they are about a key; an empty key is about all.
func Timeline(h *checker.History, log []Line, key string) string {
	lines := slices.Clone(log)
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, Line{at.Sub(h.Begun), fmt.Sprintf(format, args...)})
	}
	since := func(at time.Time) time.Duration { return at.Sub(h.Begun).Round(time.Millisecond) }
	for _, o := range h.Ops {
		if key != "" && o.Key != key {
			continue
		}
		asked := fmt.Sprintf("%s %s", o.Kind, o.Key)
		if o.N > 0 {
			asked += fmt.Sprintf(" with payload %d", o.N)
		}
		for _, at := range o.Schedule.Instants {
			asked += fmt.Sprintf(" %s", since(at))
		}
		if o.Schedule.Every > 0 {
			asked += fmt.Sprintf(" every %s until %s", o.Schedule.Every, since(o.Schedule.End))
		}
		if o.Schedule.Spread > 0 {
			asked += fmt.Sprintf(" spread over %s", o.Schedule.Spread)
		}
		if o.To != "" {
			asked += " for " + o.To
		}
		if o.Prefix != "" {
			asked += fmt.Sprintf(" with all others of %s*", o.Prefix)
		}
		if o.Match > 0 {
			asked += fmt.Sprintf(" if the payload is %d", o.Match)
		}
		if o.Most > 0 {
			asked += fmt.Sprintf(" with %d at a time", o.Most)
		}
		if o.Overlap > 0 {
			asked += fmt.Sprintf(" with an overlap of %s", o.Overlap)
		}
		if o.Caller != "" {
			asked += fmt.Sprintf(" by %s with secret %d", o.Caller, o.Secret)
		}
		add(o.Invoked, "op %d: %s, to replica %d", o.ID, asked, o.Replica)
		told := fmt.Sprintf("%d", o.Status)
		if o.Status == 0 {
			told = "no answer"
		}
		if o.Unchanged {
			told += ", nothing changed"
		}
		if o.Kind == checker.Cancel {
			told += fmt.Sprintf(", cancelled %d", o.Cancelled)
		}
		if o.Kind == checker.Redrive || o.Kind == checker.Discard {
			told += fmt.Sprintf(", %d dead letters", o.Redriven+o.Deleted)
		}
		if o.InFlight > 0 {
			told += fmt.Sprintf(", in flight %d", o.InFlight)
		}
		if o.Kind == checker.Get {
			told += fmt.Sprintf(" %+v", o.Shown)
		}
		for _, m := range o.Moved {
			told += fmt.Sprintf(", %s at %s", since(m.Instant), since(m.To))
		}
		add(o.Returned, "op %d: %s", o.ID, told)
	}
	for _, d := range h.Deliveries {
		if key != "" && d.Key != key {
			continue
		}
		what := fmt.Sprintf("payload %d of %s for %s, id %s, attempt %d, by replica %d",
			d.N, d.Key, since(d.Instant), d.ID, d.Attempt, d.Replica)
		add(d.Begun, "-> %s", what)
		if d.Ended.Year() < 9000 {
			add(d.Ended, "<- %s: taken %v, told %v", what, d.Took, d.Told)
		}
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return int(a.At - b.At) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%10.3fs  %s\n", l.At.Seconds(), l.Text)
	}
	return b.String()
}
