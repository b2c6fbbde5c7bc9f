package history

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Policy is a retention policy.
type Policy struct {
	// Keep is the retention of entries; 0 keeps none.
	Keep time.Duration
	// Failures keeps no entries of successful deliveries.
	Failures bool
}

// wants reports whether entries of a kind are kept.
func (p Policy) wants(k Kind) bool { return p.Keep > 0 && (!p.Failures || k != Delivered) }

const (
	usualKeep    = 24 * time.Hour
	onlyFailures = "failures"
)

// ParsePolicy parses the text of a policy: a duration, "failures", or "failures:DURATION". The default duration is 24h.
func ParsePolicy(s string) (Policy, error) {
	p := Policy{Keep: usualKeep}
	kept, rest, named := strings.Cut(s, ":")
	if p.Failures = kept == onlyFailures; p.Failures {
		kept = rest
	} else if named {
		return p, fmt.Errorf("must be a duration, such as 24h or 0, or failures, or failures:DURATION, not %q", s)
	}
	if !p.Failures || named {
		keep, err := job.ParseDuration(kept)
		if err != nil {
			return p, err
		}
		p.Keep = time.Duration(keep)
	}
	return p, nil
}

// String returns the text of the policy, which ParsePolicy parses.
func (p Policy) String() string {
	text := job.Duration(p.Keep).String()
	if p.Keep == 0 {
		text = "0"
	}
	if p.Failures {
		return onlyFailures + ":" + text
	}
	return text
}

// MarshalText implements [encoding.TextMarshaler].
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePolicy(string(text))
	return err
}
