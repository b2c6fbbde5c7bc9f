package service

import (
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// History configures the retention and the content of history.
type History struct {
	Keep     time.Duration // 0 keeps none
	Failures bool          // deliveries are left out
}

// Flags declares the option.
func (h *History) Flags(f *flag.FlagSet) {
	h.Keep = 24 * time.Hour
	f.Var(h, "history",
		"`DURATION`: How long the history of attempts and of changes of jobs is kept; 0 keeps none. \"failures\" leaves out "+
			"deliveries and keeps the rest for 24h, and \"failures:7d\" keeps it for a week. See docs/history.md.")
}

const onlyFailures = "failures"

// Set implements [flag.Value].
func (h *History) Set(s string) error {
	set := History{Keep: 24 * time.Hour}
	kept, rest, named := strings.Cut(s, ":")
	if set.Failures = kept == onlyFailures; set.Failures {
		kept = rest
	} else if named {
		return fmt.Errorf("must be a duration, such as 24h or 0, or failures, or failures:DURATION, not %q", s)
	}
	if !set.Failures || named {
		keep, err := job.ParseDuration(kept)
		if err != nil {
			return err
		}
		set.Keep = time.Duration(keep)
	}
	if set.Keep < 0 {
		return fmt.Errorf("is %s; it must not be negative", set.Keep)
	}
	*h = set
	return nil
}

// String implements [flag.Value].
func (h *History) String() string {
	if h.Failures {
		return onlyFailures + ":" + cli.DurationText(h.Keep)
	}
	return cli.DurationText(h.Keep)
}

// writer returns the writer of history; nil if none is kept.
func (h *History) writer(records store.Records, registry prometheus.Registerer, log *slog.Logger) *history.Writer {
	if h.Keep == 0 {
		return nil
	}
	return history.NewWriter(history.Config{
		Records: records, Keep: h.Keep, Failures: h.Failures, Logger: log, Registerer: registry,
	})
}
