package sim

import (
	"crypto/sha256"
	"fmt"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// Report is the result of a run.
type Report struct {
	Plan *Plan
	// Digest is one of the whole time line: runs with the same digest were the same.
	Digest string
	// Broken are the guarantees that the history breaks.
	Broken []checker.Violation
	// Undecided are the keys of which no order of the operations was found or excluded in time.
	Undecided []string
	// Timeline is that of the key of the first of them, or of all keys.
	Timeline string
}

// NewReport judges a history. It has all of the time line if whole is set, else only if a guarantee is broken.
func NewReport(p *Plan, h *checker.History, log []record.Line, whole bool) Report {
	all := record.Timeline(h, log, "")
	v := checker.Judge(h)
	r := Report{
		Plan: p, Digest: fmt.Sprintf("%x", sha256.Sum256([]byte(all)))[:16], Broken: v.Broken, Undecided: v.Undecided,
	}
	switch {
	case whole:
		r.Timeline = all
	case len(r.Broken) > 0:
		r.Timeline = record.Timeline(h, log, r.Broken[0].Key)
	}
	return r
}
