package job_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// recurring is a random recurring job, with its expected values.
type recurring struct {
	job.Job
	crontab job.Crontab
	in      *time.Location
	// after is a time before its first instant; anchor where it begins.
	after, anchor time.Time
	text          string
}

// randomRecurring returns a random crontab, in a random zone and from a random start, mostly near a change of the
// clocks, submitted at now. Few of them never fire.
func randomRecurring(t *testing.T, random *rand.Rand, options string) (r recurring, now time.Time) {
	t.Helper()
	zones := oddZones()
	zone := zones[random.IntN(len(zones))]
	r.in = zoned(t, zone)
	now = randomStart(random, r.in).Add(time.Duration(random.IntN(2)*random.IntN(60_000)) * time.Millisecond)
	r.after, r.anchor = now, now
	expression := randomCrontab(random, random.IntN(4) == 0)
	if random.IntN(4) == 0 {
		expression = fmt.Sprintf("@every %dms", 1000+random.IntN(1<<random.IntN(24)))
	}
	members := fmt.Sprintf(`"crontab":%q,"timezone":%q`, expression, zone)
	if random.IntN(2) == 0 {
		startAt := now.Add(time.Duration(random.IntN(4)-1) * time.Duration(random.IntN(40*24*3600_000)) * time.Millisecond)
		members += fmt.Sprintf(`,"startAt":%q`, job.FormatTime(startAt))
		if r.anchor = startAt; !startAt.Before(now) {
			r.after = startAt.Add(-time.Millisecond)
		}
	}
	if random.IntN(2) == 0 {
		endAt := r.after.Add(time.Duration(1+random.IntN(1<<(10+random.IntN(21)))) * time.Millisecond)
		members += fmt.Sprintf(`,"endAt":%q`, job.FormatTime(endAt))
	}
	r.text = body(members + options)
	d, err := job.Decode([]byte(r.text))
	if err != nil {
		t.Fatalf("%s: %v", r.text, err)
	}
	if r.Job, err = d.Job("t", generous); err != nil { // a date that no month has
		return randomRecurring(t, random, options)
	}
	r.crontab = r.Schedule.Crontab
	return r, now
}

// next returns the first instant after a time, by the crontab itself.
func (r *recurring) next(after time.Time) (time.Time, bool) {
	at, ok := r.crontab.Next(after, r.in, r.anchor)
	if end := r.Schedule.EndAt; !end.IsZero() && at.After(end) {
		return time.Time{}, false
	}
	return at, ok
}

// ticks returns the instants in (after, upTo].
func (r *recurring) ticks(after, upTo time.Time) (all []time.Time) {
	for {
		at, ok := r.next(after)
		if !ok || at.After(upTo) {
			return all
		}
		all, after = append(all, at), at
	}
}

func timestamps(occurrences []job.Occurrence) (all []time.Time) {
	for _, o := range occurrences {
		all = append(all, o.Timestamp)
	}
	return all
}

// If expansions come in time, they make exactly the crontab's instants, without gaps or repetitions, and the next
// instant is always in the store. Each expansion is as late as the lead allows.
func TestExpansionsAreTheCrontab(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	horizons := []time.Duration{0, time.Second, 2 * time.Minute, time.Hour, 36 * time.Hour}
	instants, ends := 0, 0
	for range 150 {
		r, now := randomRecurring(t, random, "")
		e := job.Expansion{Horizon: horizons[random.IntN(len(horizons))], CatchUpLimit: 1000}
		b, err := r.Begin(now, job.PastReject, e)
		if err != nil {
			if at, fires := r.next(r.after); fires {
				t.Fatalf("%s at %v: %v, but it fires at %v", r.text, now, err, at)
			}
			continue
		}
		got, added := timestamps(b.Occurrences), timestamps(b.Occurrences)
		for range 25 {
			last := got[len(got)-1]
			next, more := r.next(last)
			if more && !r.Cursor.Equal(last) || r.ExpandAt.IsZero() == more {
				t.Fatalf("%s: the cursor is %v after %v, to be expanded at %v, and then comes %v, %v", r.text, r.Cursor, last, r.ExpandAt, next, more)
			}
			if n := len(added); n > 1000 || n > 1 && added[n-1].After(now.Add(e.Horizon)) || more && n < 1000 && !next.After(now.Add(e.Horizon)) {
				t.Fatalf("%s at %v with a horizon of %v: %d are added, up to %v, before %v", r.text, now, e.Horizon, n, last, next)
			}
			if !more {
				ends++
				break
			}
			want := next.Add(-e.Horizon * 3 / 4)
			if want.After(last) {
				want = last
			}
			if !r.ExpandAt.Equal(want) {
				t.Fatalf("%s: to be expanded at %v, want %v, since after %v comes %v", r.text, r.ExpandAt, want, last, next)
			}

			earliest := r.ExpandAt
			if earliest.Before(now) {
				earliest = now
			}
			switch room := next.Sub(earliest).Milliseconds(); random.IntN(3) { // at once, at the last moment, or in between
			case 0:
				now = earliest
			case 1:
				now = next.Add(-time.Millisecond)
			default:
				now = earliest.Add(time.Duration(random.Int64N(room)) * time.Millisecond)
			}
			r.Schedule = restored(t, r.Schedule)
			x, err := r.Expand(now, e)
			if err != nil || x.Missed != 0 {
				t.Fatalf("%s at %v: %d missed, %v", r.text, now, x.Missed, err)
			}
			added = timestamps(x.Occurrences)
			got = append(got, added...)
			r.Cursor, r.ExpandAt = x.Cursor, x.ExpandAt
		}
		if want := r.ticks(r.after, got[len(got)-1]); !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("%s: %s", r.text, difference(got, want))
		}
		instants += len(got)
	}
	if instants < 10_000 || ends < 10 {
		t.Errorf("the crontabs were not telling: %d instants, %d ends", instants, ends)
	}
}

// After an outage, exactly the ticks fire that catch-up and deadline allow, and all others are counted. CatchUpFrom
// gives the same result for ticks that are in the store already.
func TestCatchUpOfRandomCrontabs(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 2))
	kept, missed := 0, 0
	for range 400 {
		mode := []job.CatchUp{job.CatchUpLatest, job.CatchUpAll, job.CatchUpNone}[random.IntN(3)]
		options := fmt.Sprintf(`,"catchUp":%q`, mode)
		deadline := time.Duration(1+random.IntN(1<<(10+random.IntN(21)))) * time.Millisecond
		if random.IntN(2) == 0 {
			options += fmt.Sprintf(`,"deadline":%q`, deadline)
		} else {
			deadline = 1 << 62
		}
		r, now := randomRecurring(t, random, options)
		e := job.Expansion{Horizon: 2 * time.Minute, CatchUpLimit: random.IntN(20)}
		if _, err := r.Begin(now, job.PastReject, e); err != nil || r.ExpandAt.IsZero() {
			continue
		}
		now = r.Cursor.Add(time.Duration(1+random.IntN(1<<(10+random.IntN(16)))) * time.Millisecond)
		passed := r.ticks(r.Cursor, now)
		limit := map[job.CatchUp]int{job.CatchUpLatest: 1, job.CatchUpAll: e.CatchUpLimit}[mode]
		var want []time.Time
		for i, at := range passed {
			if i >= len(passed)-limit && now.Sub(at) <= deadline {
				want = append(want, at)
			}
		}
		x, err := r.Expand(now, e)
		if err != nil {
			t.Fatal(err)
		}
		late := 0
		for late < len(x.Occurrences) && !x.Occurrences[late].Timestamp.After(now) {
			late++
		}
		if got := timestamps(x.Occurrences[:late]); !slices.EqualFunc(got, want, time.Time.Equal) || x.Missed != len(passed)-len(want) {
			t.Fatalf("%s at %v with a limit of %d: %s; %d of %d are missed", r.text, now, e.CatchUpLimit, difference(got, want), x.Missed, len(passed))
		}
		if next, more := r.next(now); more != (late < len(x.Occurrences)) || more && !x.Occurrences[late].Timestamp.Equal(next) {
			t.Fatalf("%s at %v: what is ahead is %v, want %v first", r.text, now, timestamps(x.Occurrences[late:]), next)
		}
		from, some, err := r.Options.CatchUpFrom(now, e.CatchUpLimit)
		for i, at := range passed {
			if fires := some && !at.Before(from); err != nil || fires != (i >= len(passed)-limit) {
				t.Fatalf("%s at %v with a limit of %d: the tick at %v, %d of %d, fires by CatchUpFrom: %t, %v", r.text, now, e.CatchUpLimit, at, i, len(passed), fires, err)
			}
		}
		kept, missed = kept+late, missed+x.Missed
	}
	if kept < 100 || missed < 1000 {
		t.Errorf("the crontabs were not telling: %d instants fire late, %d are missed", kept, missed)
	}
}

// A preview shows the same occurrences as beginning and expanding make, both before a job is submitted and later.
func TestPreviewsComeTrue(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		r, now := randomRecurring(t, random, "")
		submitted := r.Schedule
		e := job.Expansion{Horizon: time.Hour}
		before, err := submitted.Preview(now.Add(999*time.Microsecond), 50)
		if err != nil {
			t.Fatal(err)
		}
		b, err := r.Begin(now, job.PastReject, e)
		got := timestamps(b.Occurrences)
		for err == nil && len(got) < 200 && !r.ExpandAt.IsZero() {
			x, err := r.Expand(r.Cursor, e)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, timestamps(x.Occurrences)...)
			r.Cursor, r.ExpandAt = x.Cursor, x.ExpandAt
		}
		if want := got[:min(50, len(got))]; !slices.EqualFunc(upcomingOf(before), want, time.Time.Equal) {
			t.Fatalf("%s at %v: a preview %s", r.text, now, difference(upcomingOf(before), want))
		}
		if len(got) == 0 {
			continue
		}
		from := random.IntN(len(got))
		later, err := restored(t, r.Schedule).Preview(got[from], 50)
		if want := got[from:min(from+50, len(got))]; err != nil || len(want) == 50 && !slices.EqualFunc(upcomingOf(later), want, time.Time.Equal) {
			t.Fatalf("%s at %v: a later preview %s, %v", r.text, got[from], difference(upcomingOf(later), want), err)
		}
	}
}

func upcomingOf(p job.Preview) (all []time.Time) {
	for _, u := range p.Upcoming {
		all = append(all, u.At)
	}
	return all
}
