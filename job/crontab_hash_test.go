package job_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// TestHash has fixed values: a new version of the program must not move the jobs that were submitted to an older one.
func TestHash(t *testing.T) {
	for _, test := range []struct{ tenant, key, crontab, want string }{
		{"default", "nightly", "H H * * *", "16 16 * * *"},
		{"default", "nightly", "H H(0-5) * * MON-FRI", "16 4 * * MON-FRI"},
		{"default", "nightly", "H * * * *", "16 * * * *"},
		{"default", "nightly", "H/15 * * * *", "1-59/15 * * * *"},
		{"default", "nightly", "H(0-29)/10 H/6 * * *", "6-29/10 4-23/6 * * *"},
		{"default", "nightly", "H,30 0,H(12-13) * * *", "16,30 0,12 * * *"},
		{"default", "nightly", "H  H   H H H", "16 16 12 5 3"},
		{"default", "nightly", "H H H H/3 *", "16 16 12 2-12/3 *"},
		{"default", "nightly", "0 0 H/10 * *", "0 0 8-28/10 * *"},
		{"default", "nightly", "0 0 H(29-31) * *", "0 0 30 * *"},
		{"default", "nightly", "0 0 * H(JAN-mar) H(FRI-SUN)", "0 0 * 2 6"},
		{"default", "nightly", "0 0 * * H(5-7)/2", "0 0 * * 5-7/2"},
		{"default", "nightly", "H H H * * *", "9 16 16 * * *"},
		{"default", "nightly", "H(59-59) H/24 * * *", "59 16-23/24 * * *"},
		{"default", "weekly", "H H * * *", "17 6 * * *"},
		{"acme", "nightly", "H H * * *", "9 23 * * *"},
	} {
		c, err := job.CrontabOf(job.Name{Tenant: test.tenant, Key: test.key}, test.crontab)
		if err != nil || c.Resolved() != test.want || c.String() != strings.Join(strings.Fields(test.crontab), " ") {
			t.Errorf("%s of %s: %q, given as %q, %v; want %q", test.crontab, test.key, c.Resolved(), c, err, test.want)
		}
	}
}

func TestHashRefused(t *testing.T) {
	n := job.Name{Tenant: "default", Key: "k"}
	for _, test := range []struct{ crontab, want string }{
		{"H(5-3) * * * *", `minute "H(5-3)" must be H, H(a-b), H/n or H(a-b)/n with values from 0 to 59, such as H(1-3)`},
		{"H(0-60) * * * *", `minute "H(0-60)" must be H, `},
		{"H(5) * * * *", `minute "H(5)" must be H, `},
		{"H5 * * * *", `minute "H5" must be H, `},
		{"H(1-5 * * * *", `minute "H(1-5" must be H, `},
		{"H() * * * *", `minute "H()" must be H, `},
		{"H(-5) * * * *", `minute "H(-5)" must be H, `},
		{"HH * * * *", `minute "HH" must be H, `},
		{"0 0 H(0-3) * *", `day of month "H(0-3)" must be H, H(a-b), H/n or H(a-b)/n with values from 1 to 31`},
		{"0 0 * * H(MON-SUN-TUE)", `day of week "H(MON-SUN-TUE)" must be H, `},
		{"H/0 * * * *", `minute "H/0" has the step "0"; the step must be from 1 to 60`},
		{"H/61 * * * *", `minute "H/61" has the step "61"`},
		{"H(0-9)/11 * * * *", `the step must be from 1 to 10`},
		{"H/x * * * *", `has the step "x"`},
		{"H/ * * * *", `has the step ""`},
		{"0 0 H/29 * *", `the step must be from 1 to 28`},
		{"H H 30 2 *", `never fires`},
		{"h * * * *", `minute "h" must be *, or values from 0 to 59`},
		{"H * * *", `has 4 fields`},
		{"@every H", `@every`},
		{strings.Repeat("H,", 600) + "H * * * *", `at most 1000`},
		{strings.Repeat("H/9,", 200) + "H * * * *", `at most 1000`}, // with values it is longer
	} {
		if c, err := job.CrontabOf(n, test.crontab); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q, %v; want %s", test.crontab, c.Resolved(), err, test.want)
		}
	}
	if _, err := job.ParseCrontab("0 H * * *"); err == nil || err.Error() != `hour "H" stands for a value that follows from a job's key, and there is no key here` {
		t.Errorf("without a key: %v", err)
	}
}

// Each form of each field yields a value of the field, all values come up, and none much more than others.
func TestHashIsEven(t *testing.T) {
	for _, test := range []struct {
		crontab   string
		low, high int
		of        func(time.Time) int
	}{
		{"H 0 0 * * *", 0, 59, time.Time.Second},
		{"0 H * * * *", 0, 59, time.Time.Minute},
		{"0 H(10-19) * * * *", 10, 19, time.Time.Minute},
		{"0 H(10-19)/10 * * * *", 10, 19, time.Time.Minute},
		{"0 0 H * * *", 0, 23, time.Time.Hour},
		{"0 0 0 H * *", 1, 28, time.Time.Day},
		{"0 0 0 H(29-31) * *", 29, 31, time.Time.Day},
		{"0 0 0 1 H *", 1, 12, func(t time.Time) int { return int(t.Month()) }},
		{"0 0 0 * * H", 0, 6, func(t time.Time) int { return int(t.Weekday()) }},
	} {
		const jobs = 6000
		counts := make(map[int]int)
		for i := range jobs {
			c, err := job.CrontabOf(job.Name{Tenant: "t", Key: fmt.Sprint("job-", i)}, test.crontab)
			if err != nil {
				t.Fatal(err)
			}
			next, ok := c.Next(start, nil, start)
			if !ok {
				t.Fatalf("%s: %s never fires", test.crontab, c.Resolved())
			}
			counts[test.of(next)]++
		}
		mean := jobs / (test.high - test.low + 1)
		for v, n := range counts {
			if v < test.low || v > test.high || n < mean/2 || n > mean*2 {
				t.Errorf("%s: %d times %d, the mean is %d", test.crontab, n, v, mean)
			}
		}
		if len(counts) != test.high-test.low+1 {
			t.Errorf("%s: %d values", test.crontab, len(counts))
		}
	}
}

// The hour and the minute of a job are independent: 1440 minutes of the day have about their share of numbered keys.
func TestHashOfFieldsIsIndependent(t *testing.T) {
	minutes := make(map[string]int)
	for i := range 14400 {
		c, err := job.CrontabOf(job.Name{Tenant: "t", Key: fmt.Sprint("job-", i)}, "H H * * *")
		if err != nil {
			t.Fatal(err)
		}
		minutes[c.Resolved()]++
	}
	for minute, n := range minutes {
		if n > 30 {
			t.Errorf("%d at %q, the mean is 10", n, minute)
		}
	}
	if len(minutes) < 1430 {
		t.Errorf("%d minutes of 1440 have jobs", len(minutes))
	}
}

// A job with H fires as its crontab with values, is stored with both forms, and is the same when it is submitted again.
func TestHashOfAJob(t *testing.T) {
	const members = `"crontab":"H H(1-4) * * *","timezone":"Europe/Paris"`
	j, b := begun(t, body(members), start)
	plain, of := begun(t, body(fmt.Sprintf(`"crontab":%q,"timezone":"Europe/Paris"`, j.Schedule.Crontab.Resolved())), start)
	if instantsOf(b.Occurrences) != instantsOf(of.Occurrences) || len(b.Occurrences) == 0 {
		t.Errorf("fires at %s, with values at %s", instantsOf(b.Occurrences), instantsOf(of.Occurrences))
	}
	if got := *j.Options.Recurrence; got != *plain.Options.Recurrence {
		t.Errorf("recurrence %+v, with values %+v", got, *plain.Options.Recurrence)
	}
	read, err := job.DecodeSchedule(j.Schedule.Encode())
	if err != nil || read.Crontab != j.Schedule.Crontab {
		t.Errorf("read back as %+v, %v; want %+v", read.Crontab, err, j.Schedule.Crontab)
	}
	// A version that does not know of H finds a crontab that it knows.
	if stored := string(j.Schedule.Encode()); !strings.Contains(stored, fmt.Sprintf(`"crontab":%q`, j.Schedule.Crontab.Resolved())) {
		t.Errorf("stored as %s", stored)
	}
	if d := j.Draft(); *d.Crontab != "H H(1-4) * * *" {
		t.Errorf("shown as %s", *d.Crontab)
	}
	again := parsed(t, body(members))
	if !again.Schedule.Same(&j.Schedule) {
		t.Error("the same crontab is another one when it is submitted again")
	}
	other := parsed(t, strings.Replace(body(members), `"key":"k"`, `"key":"other"`, 1))
	if other.Schedule.Crontab == j.Schedule.Crontab {
		t.Error("another key has the same values")
	}
	if err := refusal(body(`"crontab":"H(9-1) * * * *"`)); err == nil || !strings.Contains(err.Error(), "/crontab: minute") {
		t.Errorf("a wrong one: %v", err)
	}
}
