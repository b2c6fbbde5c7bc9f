package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// week is 7 × 24 hours.
const week = Duration(7 * 24 * time.Hour)

const required = "is required"

// Check notes invalid fields. It runs for every submission, so it checks the fields that most submissions have by hand:
// struct tags took as long for that as reading the JSON. Options are checked by their tags.
func (d Draft) Check(invalid *Invalid) {
	switch {
	case d.Key == "":
		invalid.Add("/key", required)
	case !ValidKey(d.Key):
		invalid.Add("/key", fmt.Sprintf("must be 1 to %d bytes of UTF-8 without control characters", MaxKeyBytes))
	case Reserved(d.Key):
		invalid.Add("/key", fmt.Sprintf("must not begin with %q: these are jobs of the service's own", ReservedPrefix))
	}
	if d.Type != nil && *d.Type != "sequence" {
		invalid.Add("/type", fmt.Sprintf(`must be "sequence", or left out, not %q`, *d.Type))
	}
	for i, s := range d.Schedules {
		if _, err := ParseInstant(s); err != nil {
			invalid.Add(Pointer("schedules", i), fmt.Sprintf("%q %v", s, err))
		}
	}
	if d.Delay != nil && (*d.Delay < 0 || *d.Delay > 5200*week) {
		invalid.Add("/delay", "must be a duration from 0s to 5200w")
	}
	checkInstant("/startAt", d.StartAt, invalid)
	checkInstant("/endAt", d.EndAt, invalid)
	checkOneOf("/past", d.Past, invalid, PastFire, PastSkip, PastReject)
	if d.OptionsDraft != (OptionsDraft{}) {
		CheckTags(&d.OptionsDraft, invalid)
	}
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
	if d.Signing != nil && !ValidSecretName(*d.Signing) {
		invalid.Add("/callback/signing", fmt.Sprintf("must name a signing secret, by 1 to %d letters, digits, dots, "+
			"underscores and hyphens, or be %q", MaxSecretName, NoSigning))
	}
}

// checkInstant checks a field that may be nil, like checkOneOf.
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
