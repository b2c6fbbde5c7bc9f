package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// week is 7 * 24 hours, as durations have it.
const week = Duration(7 * 24 * time.Hour)

const required = "is required"

// check is what [Draft.Job] finds wrong with single fields.
func (d Draft) check() error {
	var invalid Invalid
	d.checkFields(&invalid)
	return invalid.Err()
}

// checkFields notes what is wrong with single fields, in their order. Every job that is submitted passes here, so it is
// written out: by struct tags it took as long as reading the JSON.
func (d *Draft) checkFields(invalid *Invalid) {
	switch {
	case d.Key == "":
		invalid.Add("/key", required)
	case !ValidKey(d.Key):
		invalid.Add("/key", fmt.Sprintf("must be 1 to %d bytes of UTF-8 without control characters", MaxKeyBytes))
	}
	if d.Type != nil && *d.Type != "sequence" {
		invalid.Add("/type", fmt.Sprintf(`must be "sequence", or left out, not %q`, *d.Type))
	}
	for i, s := range d.Schedules {
		if _, err := ParseInstant(s); err != nil {
			invalid.Add(Pointer("schedules", i), fmt.Sprintf("%q %v", s, err))
		}
	}
	checkBetween("/delay", d.Delay, 0, 5200*week, "0s to 5200w", invalid)
	checkInstant("/startAt", d.StartAt, invalid)
	checkInstant("/endAt", d.EndAt, invalid)
	checkOneOf("/past", d.Past, invalid, PastFire, PastSkip, PastReject)
	d.OptionsDraft.check(invalid)
	d.Callback.checkFields(invalid)
}

func (d *CallbackDraft) checkFields(invalid *Invalid) {
	if d == nil {
		invalid.Add("/callback", required)
		return
	}
	if d.Type == "" {
		invalid.Add("/callback/type", required)
	}
	if d.Data == nil {
		invalid.Add("/callback/data", required)
	}
	checkOneOf("/callback/envelope", d.Envelope, invalid, "none", EnvelopeStructured, EnvelopeBinary)
}

// checkInstant, like those below, notes nothing of a field that is not given.
func checkInstant(pointer string, s *string, invalid *Invalid) {
	if s == nil {
		return
	}
	if _, err := ParseInstant(*s); err != nil {
		invalid.Add(pointer, fmt.Sprintf("%q %v", *s, err))
	}
}

func checkOneOf[T ~string](pointer string, s *T, invalid *Invalid, allowed ...T) {
	if s == nil || slices.Contains(allowed, *s) {
		return
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	invalid.Add(pointer, fmt.Sprintf("must be one of %s, or left out, not %q", strings.Join(names, ", "), string(*s)))
}

// checkBetween is told the bounds as text too, in the units that people would choose.
func checkBetween(pointer string, d *Duration, low, high Duration, text string, invalid *Invalid) {
	if d != nil && (*d < low || *d > high) {
		invalid.Add(pointer, "must be a duration from "+text)
	}
}

func checkNumber[T int | float64](pointer string, n *T, low, high T, invalid *Invalid) {
	switch {
	case n == nil:
	case *n < low:
		invalid.Add(pointer, fmt.Sprintf("must be at least %v", low))
	case *n > high:
		invalid.Add(pointer, fmt.Sprintf("must be at most %v", high))
	}
}
