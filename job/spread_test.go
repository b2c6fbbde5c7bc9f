package job_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func spread(d time.Duration) job.Options { return job.Options{Spread: job.Duration(d)} }

// TestFiresAt has fixed values: a new version of the program must not move the occurrences of an older one.
func TestFiresAt(t *testing.T) {
	for _, test := range []struct {
		tenant, key, subscriber string
		part                    bool
		spread                  time.Duration
		want                    time.Duration
	}{
		{"default", "nightly", "", false, 0, 0},
		{"default", "nightly", "", false, 15 * time.Minute, 9*time.Minute + 30306*time.Millisecond},
		{"default", "nightly", "", false, 30 * time.Minute, 19*time.Minute + 612*time.Millisecond},
		{"default", "job-7", "", false, 15 * time.Minute, 8*time.Minute + 37805*time.Millisecond},
		{"acme", "nightly", "", false, 15 * time.Minute, 5*time.Minute + 34002*time.Millisecond},
		{"default", "nightly", "", true, 15 * time.Minute, 5*time.Minute + 31472*time.Millisecond},
		{"default", "nightly", "ada", true, 15 * time.Minute, 6*time.Minute + 37733*time.Millisecond},
		{"default", "18446744073709551616", "", false, 24 * time.Hour, 6*time.Hour + 46*time.Minute + 40044*time.Millisecond},
		{"default", "nightly", "", false, time.Millisecond, 0},
	} {
		o := job.Occurrence{Name: job.Name{Tenant: test.tenant, Key: test.key}, Timestamp: start}
		if test.part {
			o.Part = &job.Part{Subscriber: test.subscriber}
		}
		options := spread(test.spread)
		if got := options.FiresAt(&o).Sub(start); got != test.want {
			t.Errorf("%s/%s %s within %s: %s, want %s", test.tenant, test.key, test.subscriber, test.spread, got, test.want)
		}
	}
}

// An occurrence is moved within its window, by the same for each revision, position and priority; and a longer window
// moves it by more, so that one window never changes the order that another gives.
func TestFiresAtIsStable(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 5))
	for range 20_000 {
		window := 1 + random.Int64N(24*time.Hour.Milliseconds())
		o := job.Occurrence{
			Name:      job.Name{Tenant: "t", Key: fmt.Sprint(random.IntN(50), "-", random.IntN(50))},
			Timestamp: time.UnixMilli(random.Int64N(253402300799999)).UTC(),
		}
		options := spread(time.Duration(window) * time.Millisecond)
		at := options.FiresAt(&o)
		if moved := at.Sub(o.Timestamp); moved < 0 || moved >= time.Duration(window)*time.Millisecond || moved%time.Millisecond != 0 {
			t.Fatalf("%+v is moved by %s within %d ms", o, moved, window)
		}
		same := o
		same.Revision, same.Position, same.Priority, same.Attempt = "another", 3, job.PriorityHigh, 7
		if again := options.FiresAt(&same); !again.Equal(at) {
			t.Fatalf("%+v fires at %s and at %s", o, at, again)
		}
		twice := spread(2 * time.Duration(window) * time.Millisecond)
		if d := twice.FiresAt(&o).Sub(o.Timestamp) - 2*at.Sub(o.Timestamp); d < 0 || d > time.Millisecond {
			t.Fatalf("%+v: twice the window moves it by %s more than twice as far", o, d)
		}
	}
}

// fullest returns the largest number of occurrences in one second of the window, in units of the mean.
func fullest(window time.Duration, all []job.Occurrence) float64 {
	options := spread(window)
	seconds := make([]int, window/time.Second)
	for i := range all {
		seconds[options.FiresAt(&all[i]).Sub(all[i].Timestamp)/time.Second]++
	}
	return float64(slices.Max(seconds)) * float64(len(seconds)) / float64(len(all))
}

// TestSpreadIsEven spreads 10,000 occurrences of an instant over 15 minutes. Where keys or subscribers are numbered,
// the fullest second is near the mean. Otherwise, it is as full as chance makes it, with a mean of 11.
func TestSpreadIsEven(t *testing.T) {
	midnight := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	random := rand.New(rand.NewPCG(20, 6))
	letters := func(int) string {
		return strings.Map(func(rune) rune { return 'a' + rune(random.IntN(26)) }, "xxxxxxxxxxxx")
	}
	numbered := func(format string) func(int) string { return func(i int) string { return fmt.Sprintf(format, i) } }
	for _, test := range []struct {
		name string
		key  func(i int) string
		most float64
	}{
		{"numbered", numbered("job-%d"), 1.5},
		{"numbered with zeros", numbered("job-%05d"), 1.5},
		{"numbers in front", numbered("%d-nightly"), 1.5},
		{"numbers only", numbered("%d"), 1.5},
		{"numbered in tens", numbered("customer-%d0-report"), 1.5},
		{"large numbers", numbered("order 98765432109876%06d"), 1.5},
		{"groups of a hundred", func(i int) string { return fmt.Sprintf("team-%d/job-%d", i/100, i%100) }, 2.5},
		{"letters", letters, 2.5},
		{"hexadecimal", func(int) string { return fmt.Sprintf("%016x", random.Uint64()) }, 2.5},
	} {
		for _, at := range []time.Time{midnight, midnight.AddDate(0, 0, 1)} {
			var keys, subscribers []job.Occurrence
			for i := range 10_000 {
				key := test.key(i)
				keys = append(keys, job.Occurrence{Name: job.Name{Tenant: "default", Key: key}, Timestamp: at})
				subscribers = append(subscribers, job.Occurrence{
					Name: job.Name{Tenant: "default", Key: "campaign-1"}, Timestamp: at, Part: &job.Part{Subscriber: key},
				})
			}
			if got := fullest(15*time.Minute, keys); got > test.most {
				t.Errorf("keys, %s: the fullest second has %.2f times the mean, at most %.1f are wanted", test.name, got, test.most)
			}
			if got := fullest(15*time.Minute, subscribers); got > test.most {
				t.Errorf("subscribers, %s: the fullest second has %.2f times the mean, at most %.1f are wanted", test.name, got, test.most)
			}
		}
	}
}

// A job is moved by different times at different instants, evenly over the window, so that none is always the last.
func TestSpreadOfOneJob(t *testing.T) {
	options, tenths := spread(10*time.Minute), make([]int, 10)
	for day := range 2000 {
		o := job.Occurrence{Name: job.Name{Tenant: "default", Key: "nightly"}, Timestamp: start.AddDate(0, 0, day)}
		tenths[options.FiresAt(&o).Sub(o.Timestamp)/time.Minute]++
	}
	for i, n := range tenths {
		if n < 150 || n > 250 {
			t.Errorf("%d of 2000 are moved by %d minutes, the mean is 200", n, i)
		}
	}
}

// TestSpreadOccurrences: every kind of job is moved. Instants and delivery ids stay, also at the end of summer time.
func TestSpreadOccurrences(t *testing.T) {
	for _, members := range []string{
		`"schedules":["2030-01-02T00:00:00Z","2030-01-03T00:00:00Z"]`,
		`"schedules":["2029-01-02T00:00:00Z"]`, // past: it fires at its time in the window
		`"delay":"1h"`,
		`"crontab":"*/5 * * * *"`,
		`"crontab":"30 2 * * *","timezone":"Europe/Paris","startAt":"2030-10-27T00:00:00+02:00"`,
		`"crontab":"*/30 2 * * *","timezone":"Europe/Paris","startAt":"2030-10-27T00:00:00+02:00"`,
		`"crontab":"@every 10m"`,
		`"crontab":"@at 1900000000"`,
		`"steps":[{"type":"job"}` + hour + `,{"type":"job"},{"type":"job"}],"subscribers":3`,
	} {
		_, plain := begun(t, body(members), start)
		j, b := begun(t, body(members+`,"spread":"15m"`), start)
		if instantsOf(b.Occurrences) != instantsOf(plain.Occurrences) || len(b.Occurrences) == 0 {
			t.Errorf("%s: at %s, without spread at %s", members, instantsOf(b.Occurrences), instantsOf(plain.Occurrences))
			continue
		}
		for i, o := range b.Occurrences {
			without := plain.Occurrences[i]
			moved := o.DueAt.Sub(o.Timestamp)
			if moved <= 0 || moved >= 15*time.Minute || !o.DueAt.Equal(j.Options.FiresAt(&o)) {
				t.Errorf("%s: %s is due at %s", members, o.Timestamp, o.DueAt)
			}
			if o.DeliveryID() != without.DeliveryID() || !without.DueAt.Equal(without.Timestamp) {
				t.Errorf("%s: %s is delivered as %s, without spread as %s at %s", members, o.Timestamp, o.DeliveryID(), without.DeliveryID(), without.DueAt)
			}
		}
	}
}

// The steps of a sequence keep their order and their distances, for each subscriber.
func TestSpreadOfASequence(t *testing.T) {
	_, b := begun(t, body(`"steps":[{"type":"job"}`+strings.Repeat(hour+`,{"type":"job"}`, 20)+`],"subscribers":["ada","bob"],"spread":"24h"`), start)
	moved := make(map[string]time.Duration)
	for _, o := range b.Occurrences {
		by := o.DueAt.Sub(o.Timestamp)
		if before, known := moved[o.Part.Subscriber]; known && before != by {
			t.Errorf("step %d for %s is moved by %s, an earlier one by %s", o.Part.Step, o.Part.Subscriber, by, before)
		}
		moved[o.Part.Subscriber] = by
	}
	if len(moved) != 2 || moved["ada"] == moved["bob"] {
		t.Errorf("moved by %v", moved)
	}
}

// After an outage, a tick is late only when its window has ended. The others are inserted as ever, and fire in turn.
func TestSpreadCatchesUp(t *testing.T) {
	for _, test := range []struct {
		members string
		outage  time.Duration
		want    string // the instants up to the end of the outage
		missed  int
	}{
		{`"crontab":"@every 10m"`, 65 * time.Minute, "12:50 13:00", 3},
		{`"crontab":"@every 10m","catchUp":"none"`, 65 * time.Minute, "13:00", 4},
		{`"crontab":"@every 10m","catchUp":"all"`, 65 * time.Minute, "12:20 12:30 12:40 12:50 13:00", 0},
		{`"crontab":"@every 10m","deadline":"16m"`, 66 * time.Minute, "12:50 13:00", 3},
		{`"crontab":"@every 10m","deadline":"15m1ms"`, 66 * time.Minute, "13:00", 4},
		{`"crontab":"@hourly","catchUp":"none"`, 70 * time.Minute, "13:00", 0},
		{`"crontab":"@hourly","catchUp":"none"`, 75 * time.Minute, "", 1},
		{`"crontab":"@every 10m","endAt":"2030-01-01T12:55:00Z"`, 65 * time.Minute, "12:50", 3},
	} {
		j, _ := begun(t, body(test.members+`,"spread":"15m"`), start)
		if strings.Contains(test.members, "hourly") {
			j.Cursor = start // as if the first tick had not been expanded
		}
		if first := j.Cursor; test.members[11] == '@' && test.members[12] == 'e' && !first.Equal(start.Add(10*time.Minute)) {
			t.Fatalf("%s: the cursor is %s", test.members, first)
		}
		now := start.Add(test.outage)
		x, err := j.Expand(now, expansion)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range x.Occurrences {
			if !o.Timestamp.After(now) {
				got = append(got, o.Timestamp.Format("15:04"))
			}
		}
		if strings.Join(got, " ") != test.want || x.Missed != test.missed {
			t.Errorf("%s after %s: %v, %d missed; want %s, %d", test.members, test.outage, got, x.Missed, test.want, test.missed)
		}
	}
}

// refusal returns the error of a body that is submitted.
func refusal(body string) error {
	d, err := job.Decode([]byte(body))
	if err == nil {
		_, err = d.Job("t", generous)
	}
	return err
}

func TestSpreadRefused(t *testing.T) {
	for _, test := range []struct{ members, want string }{
		{`"delay":"1s","spread":"0s"`, "/spread: must be a duration from 1ms to 24h"},
		{`"delay":"1s","spread":"25h"`, "/spread: must be a duration from 1ms to 24h"},
		{`"delay":"1s","spread":5`, "/spread"},
		{`"delay":"1s","spread":"10m","deadline":"10m"`, "/deadline: must be longer than spread, which is 10m"},
	} {
		if err := refusal(body(test.members)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", test.members, err, test.want)
		}
	}
	j := parsed(t, body(`"delay":"1s","spread":"10m","deadline":"10m1s"`))
	if j.Options.Spread != job.Duration(10*time.Minute) {
		t.Errorf("%+v", j.Options)
	}
}

// A replacement with another spread makes new occurrences, except for those that may be claimed meanwhile. A tick that
// waits in its window is carried over, though its instant has passed.
func TestSpreadReplaced(t *testing.T) {
	before, b := begun(t, body(`"crontab":"@every 1h","startAt":"2030-01-01T12:00:00Z","spread":"15m"`), start.Add(-time.Second))
	now := start.Add(time.Minute)
	after := parsed(t, body(`"crontab":"@every 1h","startAt":"2030-01-01T12:00:00Z","spread":"5m"`))
	if after.SameTimes(&before) {
		t.Error("another spread has the same times")
	}
	after.Revision = job.NewRevision(now)
	replaced, err := after.BeginInstead(job.Predecessor{Job: &before, Pending: b.Occurrences, Until: now.Add(time.Minute)}, now, job.PastDefault, expansion)
	if err != nil || len(replaced.Carried) != 1 || replaced.Carried[0].ID != b.Occurrences[0].ID || !replaced.Carried[0].As.Timestamp.Equal(start) {
		t.Errorf("%+v, %v", replaced, err)
	}
	for _, o := range replaced.Occurrences {
		if o.DueAt.Sub(o.Timestamp) >= 5*time.Minute || !o.Timestamp.After(now) {
			t.Errorf("%s is due at %s", o.Timestamp, o.DueAt)
		}
	}
}
