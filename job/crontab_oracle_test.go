package job_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// oracle has the rules of docs/time.md, implemented a second time and independently. It watches a clock on the wall,
// minute by minute (second by second for six fields), as a cron daemon does. It uses neither sets of values nor periods
// of zones.
type oracle struct {
	words [6]string
	tick  time.Duration
}

func newOracle(expression string) oracle {
	words := strings.Fields(expression)
	if len(words) == 6 {
		return oracle{[6]string(words), time.Second}
	}
	return oracle{[6]string(append([]string{"0"}, words...)), time.Minute}
}

// fires lists the instants from a full minute, exclusive, to another, inclusive.
func (o oracle) fires(after, upTo time.Time, in *time.Location) []time.Time {
	fixed := o.words[1][0] != '*' && o.words[2][0] != '*'
	// The clock is watched from some hours before, so that the times that it has shown are known. In the test's years, no
	// zone was set back by more.
	at := after.Add(-6 * time.Hour)
	shown := wallOf(at, in)
	var fires []time.Time
	for at = at.Add(o.tick); !at.After(upTo); at = at.Add(o.tick) {
		wall := wallOf(at, in)
		due := false
		switch {
		case !at.After(after): // only watched
		case !fixed:
			due = o.matches(wall)
		case wall.Sub(shown)-o.tick >= 3*time.Hour: // the clock was corrected
			due = o.matches(wall)
		default: // a time that the clock has not shown yet is due when the clock shows it or a later one
			for missed := shown.Add(o.tick); !missed.After(wall); missed = missed.Add(o.tick) {
				due = due || o.matches(missed)
			}
		}
		if wall.After(shown) {
			shown = wall
		}
		if due {
			fires = append(fires, at.UTC())
		}
	}
	return fires
}

func wallOf(at time.Time, in *time.Location) time.Time {
	_, offset := at.In(in).Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

func (o oracle) matches(wall time.Time) bool {
	day := inField(o.words[3], wall.Day(), 31)
	weekday := inField(o.words[5], int(wall.Weekday()), 7) || wall.Weekday() == 0 && inField(o.words[5], 7, 7)
	date := day && weekday
	if o.words[3][0] != '*' && o.words[5][0] != '*' {
		date = day || weekday
	}
	return date && inField(o.words[0], wall.Second(), 59) && inField(o.words[1], wall.Minute(), 59) &&
		inField(o.words[2], wall.Hour(), 23) && inField(o.words[4], int(wall.Month()), 12)
}

// inField reports whether a field without names has a value.
func inField(field string, value, highest int) bool {
	for element := range strings.SplitSeq(field, ",") {
		span, stepText, stepped := strings.Cut(element, "/")
		step := 1
		if stepped {
			step = number(stepText)
		}
		low, high := 0, highest
		if highest == 31 || highest == 12 {
			low = 1
		}
		if span != "*" {
			from, to, ranged := strings.Cut(span, "-")
			low = number(from)
			if ranged {
				high = number(to)
			} else if !stepped {
				high = low
			}
		}
		if value >= low && value <= high && (value-low)%step == 0 {
			return true
		}
	}
	return false
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// The zones of the property test: ordinary ones, and some with unusual changes of the clocks.
func oddZones() []string {
	return []string{
		"UTC", "America/New_York", "Europe/Paris", "Europe/Dublin", "Europe/Lisbon", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu",
		"Pacific/Apia", "Pacific/Kiritimati", "Pacific/Kwajalein", "Antarctica/Troll", "Antarctica/Casey", "America/Sao_Paulo", "America/Havana",
		"America/Caracas", "America/St_Johns", "Asia/Gaza", "Asia/Tehran", "Asia/Pyongyang", "Asia/Ust-Nera", "Pacific/Auckland", "Pacific/Chatham",
		"Africa/Cairo", "America/Nuuk", "Atlantic/Azores", "Antarctica/Vostok",
	}
}

// randomField writes a field without names. It prefers few values, so that crontabs are sparse enough to test much.
func randomField(random *rand.Rand, low, high int) string {
	pick := func() int { return low + random.IntN(high-low+1) }
	element := func() string {
		a, b := pick(), pick()
		switch a, b = min(a, b), max(a, b); random.IntN(8) {
		case 0:
			return fmt.Sprintf("*/%d", 1+random.IntN(high))
		case 1:
			return fmt.Sprintf("%d-%d", a, b)
		case 2:
			return fmt.Sprintf("%d-%d/%d", a, b, 1+random.IntN(high))
		case 3:
			return fmt.Sprintf("%d/%d", a, 1+random.IntN(high))
		default:
			return strconv.Itoa(a)
		}
	}
	if random.IntN(6) == 0 {
		return "*"
	}
	parts := []string{element()}
	for random.IntN(3) == 0 {
		parts = append(parts, element())
	}
	return strings.Join(parts, ",")
}

func randomCrontab(random *rand.Rand, seconds bool) string {
	var words []string
	if seconds {
		words = append(words, randomField(random, 0, 59))
	}
	hour := randomField(random, 0, 23)
	if random.IntN(2) == 0 { // most clocks are changed in these
		hour = randomField(random, 0, 3)
	}
	words = append(words, randomField(random, 0, 59), hour)
	if random.IntN(2) == 0 {
		return strings.Join(append(words, "*", "*", "*"), " ")
	}
	return strings.Join(append(words, randomField(random, 1, 31), randomField(random, 1, 12), randomField(random, 0, 7)), " ")
}

// randomStart returns a full minute, mostly within a day of a change of the zone's clocks. From 1973 on, all zones
// differ from UTC by whole minutes.
func randomStart(random *rand.Rand, in *time.Location) time.Time {
	from, to := time.Date(1973, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	at := time.Unix(from+random.Int64N(to-from), 0).UTC()
	if _, end := at.In(in).ZoneBounds(); !end.IsZero() && random.IntN(4) > 0 {
		at = end.Add(time.Duration(random.Int64N(int64(30*time.Hour))) - 26*time.Hour).UTC()
	}
	return at.Truncate(time.Minute)
}

// For random crontabs, zones and starts, stepping forward finds exactly the oracle's instants: each instant is later
// than the one before, matches, and none in between is left out. Stepping backward finds the same.
func TestCrontabAgainstOracle(t *testing.T) {
	const seed = 20261121
	random := rand.New(rand.NewPCG(seed, seed))
	names := oddZones()
	moved, total := 0, 0
	for i := range 600 {
		seconds := i%10 == 0
		expression, name := randomCrontab(random, seconds), names[random.IntN(len(names))]
		c, err := job.ParseCrontab(expression)
		if err != nil {
			if !strings.Contains(err.Error(), "never fires") {
				t.Fatalf("%q is refused: %v", expression, err)
			}
			continue
		}
		in := zoned(t, name)
		after := randomStart(random, in)
		upTo := after.Add(3 * 24 * time.Hour)
		if seconds {
			upTo = after.Add(4 * time.Hour)
		}
		// It must make no difference whether the range begins and ends on ticks or between them.
		shift := time.Duration(random.Int64N(int64(time.Second)))
		want := newOracle(expression).fires(after, upTo, in)

		var got []time.Time
		for at := after.Add(shift); ; {
			next, ok := c.Next(at, in, after)
			if ok && !next.After(at) {
				t.Fatalf("%q in %s: after %v comes %v", expression, name, at, next)
			}
			if !ok || next.After(upTo) {
				break
			}
			got, at = append(got, next), next
			if c.ClockChange(next, in).Kind == job.Moved {
				moved++
			}
		}
		total += len(got)
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Fatalf("%q in %s from %v: next %s", expression, name, after, difference(got, want))
		}
		if back := c.Newest(after.Add(shift), upTo.Add(shift), len(want)+1, in, after); !slices.EqualFunc(back, want, time.Time.Equal) {
			t.Fatalf("%q in %s from %v: newest %s", expression, name, after, difference(back, want))
		}
	}
	t.Log(moved, total)
	if moved < 10 || total < 10000 {
		t.Errorf("the crontabs were not telling: %d instants, %d of them moved by gaps", total, moved)
	}
}

func difference(got, want []time.Time) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("ends, but %v is left", want[i])
		case i >= len(want):
			return fmt.Sprintf("goes on with %v", got[i])
		case !got[i].Equal(want[i]):
			return fmt.Sprintf("is %v, not %v", got[i], want[i])
		}
	}
	return "is the same"
}

// A sparse crontab's next instant is on the date and at the time in the crontab, however far ahead it lies.
func TestSparseCrontabs(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 11))
	for range 300 {
		expression := fmt.Sprintf("%d %d %d %d */%d", random.IntN(60), 4+random.IntN(8), 1+random.IntN(29), 1+random.IntN(12), 1+random.IntN(7))
		c, err := job.ParseCrontab(expression)
		if err != nil {
			t.Fatal(err)
		}
		after := time.Date(1950+random.IntN(200), time.Month(1+random.IntN(12)), 1, 0, 0, 0, 0, time.UTC)
		at, ok := c.Next(after, nil, after)
		if !ok {
			t.Fatalf("%q never fires after %v", expression, after)
		}
		// Day by day, as no date repeats.
		o := newOracle(expression)
		for day := time.Date(after.Year(), after.Month(), after.Day(), at.Hour(), at.Minute(), 0, 0, time.UTC); day.Before(at); day = day.AddDate(0, 0, 1) {
			if o.matches(day) {
				t.Fatalf("%q after %v: %v is skipped for %v", expression, after, day, at)
			}
		}
		if !o.matches(at) {
			t.Fatalf("%q after %v: %v does not match", expression, after, at)
		}
	}
}

func FuzzParseCrontab(f *testing.F) {
	for _, seed := range []string{
		"* * * * *", "*/5 0-23/2 1,15 JAN-DEC mon-sun", "0 */10 * * * *", "0 0 29 2 */7", "0 0 30 2 *", "@hourly", "@every 1d12h", "@at 1798120800",
		"TZ=UTC * * * * *", "* TZ=UTC * * *", "* * * * CRON_TZ=UTC", "0 0 ? * 5#2", "0 0 L * 7", "22-4 * * * *", "*/0 * * * *", "59 59 23 31 12 7",
	} {
		f.Add(seed, int64(1798120800))
	}
	zone := zoned(f, "America/New_York")
	f.Fuzz(func(t *testing.T, expression string, seconds int64) {
		c, err := job.ParseCrontab(expression)
		if err != nil {
			if c != (job.Crontab{}) || err.Error() == "" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: %v, %v", expression, c, err)
			}
			return
		}
		if again, err := job.ParseCrontab(c.String()); err != nil || again != c {
			t.Errorf("%q is written as %q and read back as %q, %v", expression, c, again, err)
		}
		after := time.Unix(seconds%(1<<33), 0)
		at, ok := c.Next(after, zone, after)
		if !ok {
			return
		}
		if !at.After(after) || at.Location() != time.UTC {
			t.Errorf("%q: after %v comes %v", expression, after, at)
		}
		if last, ok := c.Last(after, at, zone, after); !ok || !last.Equal(at) {
			t.Errorf("%q: the next after %v is %v, the last up to then %v, %v", expression, after, at, last, ok)
		}
		if last, ok := c.Last(after, at.Add(-1), zone, after); ok {
			t.Errorf("%q: between %v and the next, %v, lies %v", expression, after, at, last)
		}
	})
}

func BenchmarkCrontabNext(b *testing.B) {
	after := time.Date(2026, 11, 21, 14, 7, 13, 0, time.UTC)
	for _, test := range []struct{ name, crontab, zone string }{
		{"every minute", "* * * * *", "UTC"},
		{"every second", "* * * * * *", "Europe/Paris"},
		{"workdays", "30 9 * * 1-5", "Europe/Paris"},
		{"in the week of a change", "30 2 * * *", "America/New_York"},
		{"yearly", "@yearly", "America/New_York"},
		{"a 29th of February on a Sunday", "0 0 29 2 */7", "America/New_York"},
		{"always in a gap", "*/40 2 25-31 3 */7", "Europe/Paris"},
		{"every", "@every 10s", "UTC"},
	} {
		b.Run(test.name, func(b *testing.B) {
			c, in := crontab(b, test.crontab), zoned(b, test.zone)
			at := after
			if test.name == "in the week of a change" {
				at = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
			}
			b.ReportAllocs()
			for b.Loop() {
				c.Next(at, in, at)
			}
		})
	}
}
