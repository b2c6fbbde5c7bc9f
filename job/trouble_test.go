package job_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestTroubleAsItIsKept(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, trouble := range []job.Trouble{
		{}, {Instant: at}, {Instant: at, Missed: true}, {Instant: at, At: at.Add(time.Hour), Error: "no \x00 : . \"é\""},
		{Instant: time.UnixMilli(0).UTC(), Error: "the first"}, {Instant: time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC), At: at},
	} {
		text := trouble.Encode()
		got, err := job.DecodeTrouble(text)
		if err != nil || got != trouble {
			t.Errorf("%+v is kept as %q, which is %+v, %v", trouble, text, got, err)
		}
		if strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-") != "" {
			t.Errorf("it is kept as %q", text)
		}
	}
	for _, text := range []string{"x", "1.2.failed", "x.1.failed.", "1.x.failed.", "1.1.failed.=", "1.1.failed.a.b"} {
		if got, err := job.DecodeTrouble(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestTroubleSorts: texts sort by their instants, whatever else they contain.
func TestTroubleSorts(t *testing.T) {
	some := func() job.Trouble {
		at := time.UnixMilli(rand.Int64N(1 << rand.IntN(47)))
		return job.Trouble{Missed: rand.IntN(2) == 0, Instant: at, At: at.Add(time.Hour), Error: "z"[:rand.IntN(2)]}
	}
	for range 10_000 {
		a, b := some(), some()
		if a.Instant.Before(b.Instant) && a.Encode() >= b.Encode() || a.Encode() <= "" {
			t.Fatalf("%q and %q", a.Encode(), b.Encode())
		}
	}
}

// TestSettled: the latest ended instant is neither pending, nor skipped, nor in the future.
func TestSettled(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	list := func(past job.Past, offsets ...time.Duration) job.Job {
		j := job.Job{Name: job.Name{Tenant: "t", Key: "k"}, Revision: job.NewRevision(now)}
		for _, d := range offsets {
			j.Schedule.Instants = append(j.Schedule.Instants, now.Add(d))
		}
		if _, err := j.Begin(now, past, job.Expansion{}); err != nil {
			t.Fatal(err)
		}
		return j
	}
	crontab, err := job.ParseCrontab("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	recurring := job.Job{Name: job.Name{Tenant: "t", Key: "k"}, Revision: job.NewRevision(now), Schedule: job.Schedule{Crontab: crontab}}
	if _, err := recurring.Begin(now, job.PastSkip, job.Expansion{Horizon: 5 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	ended := recurring
	ended.Schedule.EndAt, ended.Cursor, ended.ExpandAt = now.Add(2*time.Minute), time.Time{}, time.Time{}
	const none = time.Duration(-1 << 62)
	for name, test := range map[string]struct {
		job     job.Job
		after   time.Duration
		pending []time.Duration
		want    time.Duration
	}{
		"nothing yet":            {list(job.PastFire, time.Hour), time.Minute, nil, none},
		"at its instant":         {list(job.PastFire, time.Hour, 2*time.Hour), time.Hour, nil, time.Hour},
		"the last one":           {list(job.PastFire, 0, time.Hour), 24 * time.Hour, nil, time.Hour},
		"the last one is late":   {list(job.PastFire, 0, time.Hour), 24 * time.Hour, []time.Duration{time.Hour}, 0},
		"all are late":           {list(job.PastFire, 0, time.Hour), 24 * time.Hour, []time.Duration{0, time.Hour}, none},
		"skipped":                {list(job.PastSkip, -time.Hour, time.Hour), time.Minute, nil, none},
		"skipped, and one since": {list(job.PastSkip, -time.Hour, time.Hour), time.Hour, nil, time.Hour},
		"fired late":             {list(job.PastFire, -time.Hour, time.Hour), time.Minute, nil, -time.Hour},
		"crontab, nothing yet":   {recurring, time.Second, nil, none},
		"crontab":                {recurring, 150 * time.Second, nil, 2 * time.Minute},
		"crontab, some late":     {recurring, 150 * time.Second, []time.Duration{2 * time.Minute}, time.Minute},
		"crontab, all late":      {recurring, 150 * time.Second, []time.Duration{time.Minute, 2 * time.Minute}, none},
		"crontab, not expanded":  {recurring, time.Hour, nil, recurring.Cursor.Sub(now)},
		"crontab, ended":         {ended, time.Hour, nil, 2 * time.Minute},
	} {
		var pending []time.Time
		for _, d := range test.pending {
			pending = append(pending, now.Add(d))
		}
		at, ok := test.job.Settled(now.Add(test.after), pending)
		if ok != (test.want != none) || ok && !at.Equal(now.Add(test.want)) {
			t.Errorf("%s: %s, %v, want %s", name, at.Sub(now), ok, test.want)
		}
	}
}
