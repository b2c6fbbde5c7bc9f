package job_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// A time is an instant if the instants that Next walks through have it, and its neighbours are theirs.
func TestAroundIsWhatNextWalksThrough(t *testing.T) {
	t.Parallel()
	anchor := time.Date(2027, 3, 27, 22, 15, 0, 0, time.UTC)
	for _, c := range []struct{ crontab, zone string }{
		{"30 2 * * *", "Europe/Berlin"}, {"*/20 2 * * *", "Europe/Berlin"}, {"0,30 1-3 * * *", "America/New_York"},
		{"@every 50m", ""}, {"15 4,16 * * *", "Australia/Lord_Howe"}, {"0 * * * *", ""},
	} {
		crontab, err := job.ParseCrontab(c.crontab)
		if err != nil {
			t.Fatal(err)
		}
		s := job.Schedule{Crontab: crontab, Zone: c.zone, Anchor: anchor, EndAt: anchor.Add(40 * time.Hour)}
		in, _ := time.LoadLocation(c.zone)
		var instants []time.Time
		for at, ok := crontab.Next(anchor, in, anchor); ok && !at.After(s.EndAt); at, ok = crontab.Next(at, in, anchor) {
			instants = append(instants, at)
		}
		next := 0 // the first of the instants that is not before the time
		for at := anchor.Add(-time.Hour); at.Before(s.EndAt.Add(2 * time.Hour)); at = at.Add(5 * time.Minute) {
			for next < len(instants) && instants[next].Before(at) {
				next++
			}
			var want job.Surroundings
			after := next
			if want.Is = next < len(instants) && instants[next].Equal(at); want.Is {
				want.Count, after = 1, next+1
			}
			if next > 0 {
				want.Before = instants[next-1]
			}
			if after < len(instants) {
				want.After = instants[after]
			}
			got, err := s.Around(at)
			if got.ClockChange = (job.ClockChange{}); err != nil || got != want {
				t.Errorf("%s around %s: got %+v, %v; want %+v", c.crontab, at, got, err, want)
			}
		}
	}
}

func TestAroundAList(t *testing.T) {
	t.Parallel()
	at := func(h int) time.Time { return time.Date(2027, 1, 1, h, 0, 0, 0, time.UTC) }
	s := job.Schedule{Instants: []time.Time{at(1), at(3), at(5)}}
	for h, want := range map[int]job.Surroundings{
		0: {After: at(1)},
		1: {Is: true, Count: 1, After: at(3), ClockChange: job.ClockChange{}},
		4: {Before: at(3), After: at(5)},
		6: {Before: at(5)},
	} {
		if got, err := s.Around(at(h)); err != nil || got != want {
			t.Errorf("around %d: got %+v, %v; want %+v", h, got, err, want)
		}
	}
	if n := s.Size(); n != 3 {
		t.Errorf("its size is %d", n)
	}
}

// Times that clocks skip or show twice are distinguished from times that a crontab does not have at all.
func TestAroundClockChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		crontab, zone, at string
		kind              job.ClockChangeKind
		instead           string
	}{
		{"30 2 * * *", "Europe/Berlin", "2027-03-28T02:30:00+01:00", job.Moved, "2027-03-28T01:00:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2027-03-28T02:30:00+02:00", job.Moved, "2027-03-28T01:00:00Z"},
		{"*/30 2 * * *", "Europe/Berlin", "2027-03-28T02:30:00+01:00", job.LeftOut, "2027-03-28T01:00:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2027-03-28T02:31:00+01:00", job.Unaffected, ""},
		{"30 2 * * *", "Europe/Berlin", "2027-03-27T02:30:00+02:00", job.Unaffected, ""}, // a day before
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T02:30:00+01:00", job.OnlyFirst, "2027-10-31T00:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T02:30:00.001+01:00", job.Unaffected, ""},
		{"30 2 * * *", "", "2027-03-28T02:31:00Z", job.Unaffected, ""},
		{"@every 1h", "Europe/Berlin", "2027-03-28T02:30:00+01:00", job.Unaffected, ""},
	} {
		crontab, err := job.ParseCrontab(c.crontab)
		if err != nil {
			t.Fatal(err)
		}
		at, err := job.ParseInstant(c.at)
		if err != nil {
			t.Fatal(err)
		}
		s := job.Schedule{Crontab: crontab, Zone: c.zone, Anchor: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}
		got, err := s.Around(at)
		if err != nil || got.Is || got.ClockChange.Kind != c.kind {
			t.Errorf("%s at %s: %+v, %v; want the kind %d", c.crontab, c.at, got, err, c.kind)
		}
		if c.instead != "" && got.ClockChange.At.Format(time.RFC3339) != c.instead {
			t.Errorf("%s at %s: it fires at %s; want %s", c.crontab, c.at, got.ClockChange.At, c.instead)
		}
	}
}

// The time to which a spread moves an instant leads back to the instant.
func TestNominal(t *testing.T) {
	t.Parallel()
	crontab, err := job.ParseCrontab("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	anchor := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	j := job.Job{Name: job.Name{Tenant: "acme", Key: "k"}}
	j.Schedule.Crontab, j.Schedule.Anchor = crontab, anchor
	j.Options.Spread = job.Duration(time.Hour)
	for i := 1; i <= 50; i++ {
		o := job.Occurrence{Name: j.Name, Timestamp: anchor.Add(time.Duration(i) * time.Minute)}
		if got := j.Nominal(j.Options.FiresAt(&o)); !got.Equal(o.Timestamp) {
			t.Errorf("%s leads to %s, not to %s", j.Options.FiresAt(&o), got, o.Timestamp)
		}
	}
	if at := anchor.Add(1234567 * time.Millisecond); !j.Nominal(at).Equal(at) {
		t.Errorf("%s, to which nothing is moved, leads to %s", at, j.Nominal(at))
	}
}

func TestLastID(t *testing.T) {
	t.Parallel()
	at := time.Date(2027, 1, 1, 0, 0, 0, 1e6, time.UTC)
	n := job.Name{Tenant: "acme", Key: "k"}
	for position := range 100 {
		id := job.OccurrenceID(n, "r", at, position, "")
		if id.Compare(job.LastID(at)) > 0 || id.Compare(job.LastID(at.Add(-time.Millisecond))) <= 0 {
			t.Errorf("%s is not among the ids of its instant", id)
		}
	}
}
