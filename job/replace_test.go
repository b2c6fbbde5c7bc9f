package job_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// second returns an instant some seconds after the start.
func second(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }

// predecessor returns a job that began at the start, with its first occurrences.
func predecessor(t *testing.T, s job.Schedule) (job.Job, []job.Occurrence) {
	t.Helper()
	j := job.Job{Name: job.Name{Tenant: "t", Key: "k"}, Revision: job.NewRevision(start), Schedule: s}
	b, err := j.Begin(start, job.PastFire, job.Expansion{Horizon: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return j, b.Occurrences
}

// TestBeginInstead replaces random lists of instants by others. The pending occurrences of the old job decide whether
// each instant of the new one is inserted, carried over, settled or skipped.
func TestBeginInstead(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // it is a test's
	instants := func() (all []time.Time) {
		for i := range 30 {
			if random.IntN(2) == 0 {
				all = append(all, second(i))
			}
		}
		return append(all, second(100))
	}
	for range 500 {
		old, occurrences := predecessor(t, job.Schedule{Instants: instants()})
		now, until := second(10), second(20)
		var pending []job.Occurrence
		for _, o := range occurrences {
			if o.Timestamp.After(until) || random.IntN(2) == 0 {
				pending = append(pending, o)
			}
		}
		successor := job.Job{Name: old.Name, Revision: job.NewRevision(now), Schedule: job.Schedule{Instants: instants()}}
		for _, past := range []job.Past{job.PastFire, job.PastSkip} {
			j := successor
			b, err := j.BeginInstead(job.Predecessor{Job: &old, Pending: pending, Until: until}, now, past, job.Expansion{})
			if err != nil {
				t.Fatal(err)
			}
			var inserted, carried []time.Time
			settled, skipped := 0, 0
			for _, at := range j.Schedule.Instants {
				was := slices.ContainsFunc(old.Schedule.Instants, at.Equal) && !at.After(until)
				is := slices.ContainsFunc(pending, func(o job.Occurrence) bool { return o.Timestamp.Equal(at) })
				switch {
				case was && is:
					carried = append(carried, at)
				case was && (past == job.PastSkip || !at.Before(now)):
					settled++
				case at.Before(now) && past == job.PastSkip:
					skipped++
				default:
					inserted = append(inserted, at)
				}
			}
			var got []time.Time
			for _, o := range b.Occurrences {
				got = append(got, o.Timestamp)
			}
			if !slices.EqualFunc(got, inserted, time.Time.Equal) {
				t.Fatalf("%s: %v are inserted, want %v", past, got, inserted)
			}
			got = nil
			for _, c := range b.Carried {
				got = append(got, c.As.Timestamp)
				if c.As.Revision != j.Revision || c.ID != job.OccurrenceID(old.Name, old.Revision, c.As.Timestamp, 0, "") {
					t.Fatalf("%+v", c)
				}
			}
			if !slices.EqualFunc(got, carried, time.Time.Equal) {
				t.Fatalf("%s: %v are carried over, want %v", past, got, carried)
			}
			if b.Settled != settled || b.Skipped != skipped {
				t.Fatalf("%s: %d settled and %d skipped, want %d and %d", past, b.Settled, b.Skipped, settled, skipped)
			}
		}
	}
}

// TestBeginInsteadOfACrontab derives the ticks that a crontab has had from its grid, its beginning, its cursor and its
// end.
func TestBeginInsteadOfACrontab(t *testing.T) {
	crontab, err := job.ParseCrontab("@every 2s")
	if err != nil {
		t.Fatal(err)
	}
	list := job.Schedule{Instants: []time.Time{second(1), second(2), second(3), second(4), second(5), second(6)}}
	one, unit := 1.0, "second"
	sequence := job.Schedule{StartAt: start} // of the same instants
	for range list.Instants {
		sequence.Steps = append(sequence.Steps,
			job.Step{Type: job.StepPeriod, DelayPeriod: &one, DelayUnit: &unit}, job.Step{Type: job.StepJob})
	}
	for name, test := range map[string]struct {
		schedule job.Schedule
		cursor   time.Time // replaces the cursor of the beginning
		settled  []time.Time
	}{
		"as it began":           {job.Schedule{Crontab: crontab}, second(20), []time.Time{second(2), second(4), second(6)}},
		"from a later start on": {job.Schedule{Crontab: crontab, StartAt: second(4)}, second(20), []time.Time{second(4), second(6)}},
		"up to its cursor":      {job.Schedule{Crontab: crontab}, second(4), []time.Time{second(2), second(4)}},
		"up to its end":         {job.Schedule{Crontab: crontab, EndAt: second(5)}, time.Time{}, []time.Time{second(2), second(4)}},
	} {
		for _, by := range []job.Schedule{list, sequence} {
			old, _ := predecessor(t, test.schedule)
			old.Cursor = test.cursor
			j := job.Job{Name: old.Name, Revision: job.NewRevision(start), Schedule: by}
			b, err := j.BeginInstead(job.Predecessor{Job: &old, Until: second(60)}, start, job.PastSkip, job.Expansion{})
			if err != nil {
				t.Fatal(err)
			}
			var got []time.Time
			for _, at := range list.Instants {
				if !slices.ContainsFunc(b.Occurrences, func(o job.Occurrence) bool { return o.Timestamp.Equal(at) }) {
					got = append(got, at)
				}
			}
			if !slices.EqualFunc(got, test.settled, time.Time.Equal) || b.Settled != len(got) {
				t.Errorf("%s, by %d steps: %v are settled, want %v", name, len(by.Steps), got, test.settled)
			}
		}
	}
}
