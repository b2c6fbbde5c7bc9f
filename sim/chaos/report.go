package chaos

import (
	"fmt"
	"io"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// Judge judges a result, prints the observations, and reports whether nothing was wrong. It prints each violation with
// the seed, the plan and a time line.
func (r *Result) Judge(out io.Writer) bool {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(out, format+"\n", args...) }
	h := &r.History
	acknowledged, taken := 0, 0
	for i := range h.Ops {
		if h.Ops[i].Status >= 200 && h.Ops[i].Status < 300 {
			acknowledged++
		}
	}
	for i := range h.Deliveries {
		if h.Deliveries[i].Took {
			taken++
		}
	}
	say("%d requests, %d of them acknowledged; %d attempts, %d of them taken; %d faults; settled after %s",
		len(h.Ops), acknowledged, len(h.Deliveries), taken, len(h.Troubles), h.Ended.Sub(h.Calm).Round(time.Second))
	verdict := checker.Judge(h)
	violations := verdict.Broken
	if len(verdict.Undecided) > 0 {
		say("undecided: no order of the operations was found or excluded in time on %q", verdict.Undecided)
	}
	for _, fault := range r.Faults {
		say("wrong: %s", fault)
	}
	told := make(map[string]bool)
	for _, v := range violations {
		say("violation at %s of %s", v.At.Sub(h.Begun), v)
		if !told[v.Key] {
			told[v.Key] = true
			say("%s", record.Timeline(h, r.Lines, v.Key))
		}
	}
	if len(violations) == 0 && len(r.Faults) == 0 {
		return true
	}
	say("seed %d; the plan:", r.Plan.Seed)
	for _, f := range r.Plan.Faults {
		say("%s", f)
	}
	say("the logs of the replicas are in %s", r.Folder)
	return false
}
