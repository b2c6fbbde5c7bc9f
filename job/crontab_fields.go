package job

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// fields are the sets of values of a crontab's fields, as bits. Sunday is 0.
type fields struct {
	second, minute, hour, day, month, weekday uint64
	// either is set if both day fields are restricted: then a date matches if one of them does; else both must.
	either bool
	// real is set if the minute or the hour begins with *: the crontab fires whenever a clock shows a matching time.
	// Otherwise it has fixed times, each of which fires once.
	real bool
}

// crontabField is the rule of one field.
type crontabField struct {
	name      string
	low, high int
	option    cron.ParseOption
	names     string // an example of its names, if it has any
}

func crontabFields() [6]crontabField {
	return [6]crontabField{
		{"second", 0, 59, cron.Second, ""},
		{"minute", 0, 59, cron.Minute, ""},
		{"hour", 0, 23, cron.Hour, ""},
		{"day of month", 1, 31, cron.Dom, ""},
		{"month", 1, 12, cron.Month, "JAN to DEC"},
		{"day of week", 0, 7, cron.Dow, "SUN to SAT, with 0 and 7 both Sunday"},
	}
}

func parseFields(words []string) (fields, error) {
	if n := len(words); n != 5 && n != 6 {
		return fields{}, fmt.Errorf(
			"has %d fields; must have five (minute, hour, day of month, month, day of week) or six (second first)", n)
	}
	if len(words) == 5 {
		words = append([]string{"0"}, words...)
	}
	var sets [6]uint64
	for i, field := range crontabFields() {
		set, err := field.parse(words[i])
		if err != nil {
			return fields{}, err
		}
		sets[i] = set
	}
	star := func(i int) bool { return words[i][0] == '*' }
	f := fields{
		second: sets[0], minute: sets[1], hour: sets[2], day: sets[3], month: sets[4], weekday: sets[5],
		either: !star(3) && !star(5),
		real:   star(1) || star(2),
	}
	if !f.either && !f.hasDate() {
		return fields{}, fmt.Errorf("never fires: month %q has no day of month %q; February has 29 days at most, "+
			"April, June, September and November have 30", words[4], words[3])
	}
	return f, nil
}

// hasDate reports whether any month has any of the days. If so, every day of the week falls on such a date in some
// year.
func (f fields) hasDate() bool {
	for month := f.month; month != 0; month &= month - 1 {
		first := time.Month(bits.TrailingZeros64(month))
		if f.day&daysOf(2000, first) != 0 { // a leap year
			return true
		}
	}
	return false
}

// parse reads one field: a list of values, ranges and steps.
func (f crontabField) parse(word string) (uint64, error) {
	var set uint64
	for _, element := range strings.Split(word, ",") {
		s, err := f.element(element)
		if err != nil {
			return 0, fmt.Errorf("%s %q %w", f.name, element, err)
		}
		set |= s
	}
	return set, nil
}

// element reads one element of a list. The library reads values, names, ranges and steps. This method refuses elements
// that the library accepts by mistake (signs, "?", "*-5", an empty one), reads 7 as Sunday, which the library does not
// know, and has our own error messages.
func (f crontabField) element(element string) (uint64, error) {
	if strings.Trim(element, "*/-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || element == "" {
		return 0, f.refuse(element)
	}
	span, step, stepped := strings.Cut(element, "/")
	if n, err := strconv.Atoi(step); stepped && (!digits(step) || err != nil || n == 0) {
		return 0, fmt.Errorf("has the step %q; a step must be a whole number of at least 1, as in */5", step)
	}
	if span != "*" && strings.Contains(span, "*") {
		return 0, f.refuse(element)
	}
	if f.option == cron.Dow && span != "*" {
		return f.weekdays(element)
	}
	set, ok := f.library(element)
	if !ok {
		return 0, f.refuse(element)
	}
	return set, nil
}

// weekdays reads an element of the day of week. 7 is Sunday; SUN is 7 at the end of a range.
func (f crontabField) weekdays(element string) (uint64, error) {
	const sunday = 1 << 0
	span, step, stepped := strings.Cut(element, "/")
	from, to, ranged := strings.Cut(span, "-")
	if stepped && !ranged { // 1/2 is 1-7/2
		to, ranged = "7", true
	}
	if from == "7" && (!ranged || to == "7" || strings.EqualFold(to, "SUN")) {
		return sunday, nil
	}
	if !ranged || to != "7" && (!strings.EqualFold(to, "SUN") || strings.EqualFold(from, "SUN")) {
		set, ok := f.library(element)
		if !ok {
			return 0, f.refuse(element)
		}
		return set, nil
	}
	first, ok := f.library(from)
	if !ok {
		return 0, f.refuse(element)
	}
	every := 1
	if stepped {
		every, _ = strconv.Atoi(step) // it was checked
	}
	var set uint64
	for day := bits.TrailingZeros64(first); day <= 7; day += every {
		set |= 1 << (day % 7)
	}
	return set, nil
}

// library reads an element, or part of one, with the library's parser for the field. Most elements are a star or a
// number, which it reads without: a forecast reads all crontabs of a store, and the parser would take most of its time.
func (f crontabField) library(element string) (set uint64, ok bool) {
	highest := f.high
	if f.option == cron.Dow {
		highest = 6
	}
	if element == "*" {
		return 1<<(highest+1) - 1<<f.low, true
	}
	if n, err := strconv.Atoi(element); err == nil && digits(element) && f.low <= n && n <= highest {
		return 1 << n, true
	}
	if strings.Contains(element, "=") { // the library would read TZ= as a time zone, and panics if no field follows
		return 0, false
	}
	schedule, err := cron.NewParser(f.option).Parse(element)
	if err != nil {
		return 0, false
	}
	spec := schedule.(*cron.SpecSchedule)
	switch f.option {
	case cron.Second:
		set = spec.Second
	case cron.Minute:
		set = spec.Minute
	case cron.Hour:
		set = spec.Hour
	case cron.Dom:
		set = spec.Dom
	case cron.Month:
		set = spec.Month
	default:
		set = spec.Dow
	}
	const star = 1 << 63 // the library's mark of an asterisk
	return set &^ star, true
}

// refuse returns an error with the reason, if it is clear, and a correct form.
func (f crontabField) refuse(element string) error {
	right := fmt.Sprintf("must be *, or values from %d to %d", f.low, f.high)
	if f.names != "" {
		right += " (or " + f.names + ")"
	}
	right += fmt.Sprintf(", ranges such as %d-%d, steps such as */2, or a list of them with commas", f.low+1, f.low+3)

	span, _, _ := strings.Cut(element, "/")
	from, to, ranged := strings.Cut(span, "-")
	first, fromOK := f.library(from)
	last, toOK := f.library(to)
	upper := strings.ToUpper(element)
	switch {
	case f.option == cron.Dow && from == "7" && toOK:
		return fmt.Errorf("ends before it begins; write it as 0-%s", to)
	case ranged && fromOK && toOK && first > last && f.option == cron.Dow:
		return fmt.Errorf("ends before it begins; write it as two: %s-6,0-%s", from, to)
	case ranged && fromOK && toOK && first > last:
		return fmt.Errorf("ends before it begins; write it as two: %s-%d,%d-%s", from, f.high, f.low, to)
	case strings.HasPrefix(element, "H"):
		return errNoKey
	case element == "?":
		return errors.New("is not supported; write * instead")
	case f.option == cron.Dow && strings.Contains(element, "#"):
		return fmt.Errorf("is not supported (n-th weekday of a month); %s", right)
	case (f.option == cron.Dom || f.option == cron.Dow) &&
		strings.ContainsAny(upper, "LW") && strings.Trim(upper, "LW-0123456789") == "":
		return fmt.Errorf("is not supported (L for the last day, W for the nearest workday); %s", right)
	default:
		return errors.New(right)
	}
}
