package cli

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Duration declares an option for a duration, which may also be in days and weeks.
func Duration(f *flag.FlagSet, p *time.Duration, name string, standard time.Duration, usage string) {
	*p = standard
	f.Var((*duration)(p), name, usage)
}

type duration time.Duration

// Set implements [flag.Value].
func (d *duration) Set(s string) error {
	parsed, err := job.ParseDuration(s)
	*d = duration(parsed)
	return err
}

// String implements [flag.Value].
func (d *duration) String() string { return DurationText(time.Duration(*d)) }

// DurationText writes a length of time as [Duration] reads it.
func DurationText(d time.Duration) string {
	const day = 24 * time.Hour
	if d > day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	s := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, nothing) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// Text declares an option that is off without a value, such as the name of a file. An empty value, as of a variable
// that a script has not set, is refused: the option would silently be off.
func Text(f *flag.FlagSet, p *string, name, usage string) { f.Var((*text)(p), name, usage) }

type text string

// Set implements [flag.Value].
func (t *text) Set(s string) error {
	if s == "" {
		return errors.New("must not be empty; leave the option out to go without it")
	}
	*t = text(s)
	return nil
}

// String implements [flag.Value].
func (t *text) String() string { return string(*t) }

// List declares an option for texts with commas between them. A repeated option adds to the list.
func List(f *flag.FlagSet, p *[]string, name, usage string) {
	f.Func(name, usage, func(s string) error {
		*p = append(*p, strings.Split(s, ",")...)
		return nil
	})
}

// Choice declares an option for one of several texts. The first is the default. The usage lists them at its end.
func Choice(f *flag.FlagSet, p *string, name string, of []string, usage string) {
	*p = of[0]
	f.Var(&choice{p, of}, name, usage+" One of "+strings.Join(of, ", ")+".")
}

type choice struct {
	p  *string
	of []string
}

// Set implements [flag.Value].
func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("must be one of %s, not %q", strings.Join(c.of, ", "), s)
	}
	*c.p = s
	return nil
}

// String implements [flag.Value].
func (c *choice) String() string {
	if c.p == nil {
		return ""
	}
	return *c.p
}
