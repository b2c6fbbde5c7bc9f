package job

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/robfig/cron/v3"
)

// CrontabOf reads the crontab expression of a job, in whose fields H may stand for values that follow from the job's
// name: H, H(a-b), H/n or H(a-b)/n, alone or in a list. The same name always has the same values. The errors are those
// of [ParseCrontab].
func CrontabOf(n Name, expression string) (Crontab, error) {
	words := strings.Fields(expression)
	if len(expression) > maxCrontabBytes || !HasHash(expression) {
		return ParseCrontab(expression)
	}
	resolved := make([]string, len(words))
	fields := crontabFields()
	for i, word := range words {
		field := fields[i+len(fields)-len(words)]
		elements := strings.Split(word, ",")
		for k, element := range elements {
			if !strings.HasPrefix(element, "H") {
				continue
			}
			var err error
			if elements[k], err = field.resolve(n, element); err != nil {
				return Crontab{}, fmt.Errorf("%s %q %w", field.name, element, err)
			}
		}
		resolved[i] = strings.Join(elements, ",")
	}
	c, err := ParseCrontab(strings.Join(resolved, " "))
	if err != nil {
		return Crontab{}, err
	}
	c.submitted = strings.Join(words, " ")
	return c, nil
}

// HasHash reports whether an expression has an H, so that its values follow from a job's name.
func HasHash(expression string) bool {
	words := strings.Fields(expression)
	if len(words) != 5 && len(words) != 6 || words[0][0] == '@' {
		return false
	}
	for _, word := range words {
		if word[0] == 'H' || strings.Contains(word, ",H") {
			return true
		}
	}
	return false
}

// resolve returns the standard form of an element with an H: one value, or a range with a step, as in 7-59/15.
func (f crontabField) resolve(n Name, element string) (string, error) {
	span, step, stepped := strings.Cut(strings.TrimPrefix(element, "H"), "/")
	low, high := f.low, f.high
	switch f.option { // without a range, values that each month has, and Sunday once
	case cron.Dom:
		high = 28
	case cron.Dow:
		high = 6
	default:
	}
	if span != "" {
		inner, opened := strings.CutPrefix(span, "(")
		inner, closed := strings.CutSuffix(inner, ")")
		from, to, ranged := strings.Cut(inner, "-")
		var fromOK, toOK bool
		low, fromOK = f.number(from)
		high, toOK = f.number(to)
		if f.option == cron.Dow && high == 0 && low > 0 { // SUN at the end
			high = 7
		}
		if !opened || !closed || !ranged || !fromOK || !toOK || low > high {
			return "", f.refuseHash()
		}
	}
	size := high - low + 1
	if stepped {
		every, err := strconv.Atoi(step)
		if !digits(step) || err != nil || every < 1 || every > size {
			return "", fmt.Errorf("has the step %q; the step must be from 1 to %d, the number of values", step, size)
		}
		return fmt.Sprintf("%d-%d/%d", low+f.hash(n, every), high, every), nil
	}
	return strconv.Itoa(low + f.hash(n, size)), nil
}

// hash returns a job's number of a field, from 0 up to a bound. The fields' numbers are independent.
func (f crontabField) hash(n Name, below int) int {
	return int(hashOf(n.Tenant, n.Key, f.name, 0) % uint64(below)) //nolint:gosec // it is positive
}

// number reads a value or a name of the field.
func (f crontabField) number(text string) (int, bool) {
	if f.option == cron.Dow && text == "7" {
		return 7, true
	}
	if text == "" || strings.ContainsAny(text, "*/,?-") {
		return 0, false
	}
	set, ok := f.library(text)
	return bits.TrailingZeros64(set), ok
}

func (f crontabField) refuseHash() error {
	return fmt.Errorf("must be H, H(a-b), H/n or H(a-b)/n with values from %d to %d, such as H(%d-%d)",
		f.low, f.high, f.low+1, f.low+3)
}

var errNoKey = errors.New("stands for a value that follows from a job's key, and there is no key here")
