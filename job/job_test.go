package job_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// start is the present time of these tests.
var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func TestOccurrences(t *testing.T) {
	now := start.Add(900 * time.Microsecond) // clocks are finer than instants: start itself is not past yet
	j := job.Job{
		Name: job.Name{Tenant: "t", Key: "k"}, Revision: job.NewRevision(start),
		Schedule: job.Schedule{Instants: []time.Time{start.Add(-time.Hour), start.Add(-time.Millisecond), start, start.Add(time.Hour)}},
	}
	all := j.Schedule.Instants
	for past, want := range map[job.Past]struct {
		instants []time.Time
		skipped  int
		refused  int
	}{
		job.PastFire:   {instants: all},
		job.PastSkip:   {instants: all[2:], skipped: 2},
		job.PastReject: {refused: 2},
	} {
		j := j
		b, err := j.Begin(now, past, job.Expansion{})
		occurrences, skipped := b.Occurrences, b.Skipped
		if invalid, ok := errors.AsType[*job.Invalid](err); ok != (want.refused > 0) || ok && len(invalid.Fields) != want.refused {
			t.Errorf("%s: %v", past, err)
		}
		if err != nil {
			if want.refused == 0 {
				t.Errorf("%s: %v", past, err)
			}
			continue
		}
		var instants []time.Time
		for _, o := range occurrences {
			instants = append(instants, o.Timestamp)
			if o.ID != job.OccurrenceID(j.Name, j.Revision, o.Timestamp, 0, "") || o.Name != j.Name || o.Revision != j.Revision ||
				!o.DueAt.Equal(o.Timestamp) || o.Attempt != 0 || o.Token != "" || o.Own != nil {
				t.Errorf("%s: %+v", past, o)
			}
		}
		if !slices.EqualFunc(instants, want.instants, time.Time.Equal) || skipped != want.skipped {
			t.Errorf("%s: %v and %d skipped, want %v and %d", past, instants, skipped, want.instants, want.skipped)
		}
	}
}

func TestReachesThePast(t *testing.T) {
	now := start.Add(900 * time.Microsecond)
	for name, test := range map[string]struct {
		instants []time.Time
		want     bool
	}{
		"none": {nil, false}, "this millisecond": {[]time.Time{start}, false}, "to come": {[]time.Time{start.Add(time.Hour)}, false},
		"past": {[]time.Time{start.Add(-time.Millisecond), start.Add(time.Hour)}, true},
	} {
		if got := (job.Schedule{Instants: test.instants}).Reaches(start.Add(-time.Millisecond), now); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestHeld(t *testing.T) {
	for name, test := range map[string]struct {
		o    job.Occurrence
		want bool
	}{
		"never claimed":   {job.Occurrence{DueAt: start.Add(time.Hour)}, false},
		"claimed":         {job.Occurrence{Token: "t", DueAt: start.Add(time.Millisecond)}, true},
		"lease has ended": {job.Occurrence{Token: "t", DueAt: start}, false},
	} {
		if got := test.o.Held(start); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestScheduleAndOptionsAreReadBack(t *testing.T) {
	for _, instants := range [][]time.Time{{}, {time.UnixMilli(0).UTC()}, {start, start.Add(time.Millisecond)}} {
		got, err := job.DecodeSchedule(job.Schedule{Instants: instants}.Encode())
		if err != nil || !slices.Equal(got.Instants, instants) {
			t.Errorf("%v is read back as %v, %v", instants, got, err)
		}
	}
	for _, options := range []job.Options{
		{}, {Retry: job.Retry{MaxAttempts: 3}}, {Retry: job.Retry{Initial: 1, Factor: 1.1, Max: job.Duration(30 * 24 * time.Hour)}},
	} {
		if got, err := job.DecodeOptions(options.Encode()); err != nil || !reflect.DeepEqual(got, options) {
			t.Errorf("%+v is read back as %+v, %v", options, got, err)
		}
	}
	if b := (job.Options{}).Encode(); len(b) > 0 {
		t.Errorf("defaults are kept as %s, want nothing", b)
	}
	for _, bad := range []string{"{", "[]", `{"instants":["x"]}`} {
		if _, err := job.DecodeSchedule([]byte(bad)); err == nil {
			t.Errorf("schedule %s is read", bad)
		}
	}
	if _, err := job.DecodeOptions([]byte("{")); err == nil {
		t.Error("half a document is read as options")
	}
}

func TestInvalidIsReadable(t *testing.T) {
	var invalid job.Invalid
	if err := invalid.Err(); err != nil {
		t.Errorf("nothing noted is %v", err)
	}
	invalid.Add("/a", "is wrong")
	invalid.Add("", "is too")
	moved := invalid.Under("/callback/data")
	if got := moved.Error(); got != "/callback/data/a: is wrong; /callback/data: is too" {
		t.Errorf("%q", got)
	}
	for range 200 {
		invalid.Add("/b", strings.Repeat("x", 10))
	}
	if n := len(invalid.Fields); n != 100 {
		t.Errorf("%d fields, want 100", n)
	}
}

func TestPointer(t *testing.T) {
	if got := job.Pointer("a/b", 3, "~", ""); got != "/a~1b/3/~0/" {
		t.Errorf("%q", got)
	}
}
