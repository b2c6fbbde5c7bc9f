package record

import (
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// pendingOf returns the due times of the pending occurrences that a job's answer shows, of those that were not
// attempted.
func pendingOf(body []byte) (all []checker.Moved, err error) {
	var s struct {
		Occurrences []struct {
			State            string
			Attempt          int
			Timestamp, DueAt time.Time
		}
	}
	err = decode(body, &s)
	for _, o := range s.Occurrences {
		if o.State == "scheduled" && o.Attempt == 0 {
			all = append(all, checker.Moved{Instant: o.Timestamp, To: o.DueAt})
		}
	}
	return all, err
}

// previewOf returns the times to which a job's spread moves the instants of a preview; none without a spread.
func previewOf(body []byte) (all []checker.Moved, err error) {
	var p struct {
		Items []struct{ Timestamp, FiresAt time.Time }
	}
	err = decode(body, &p)
	for _, i := range p.Items {
		if !i.FiresAt.IsZero() {
			all = append(all, checker.Moved{Instant: i.Timestamp, To: i.FiresAt})
		}
	}
	return all, err
}
