package cli

import (
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Duration is an option's length of time, which may be in days and weeks too.
type Duration job.Duration

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(b []byte) error { return (*job.Duration)(d).UnmarshalText(b) }

// Std is the duration as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }
