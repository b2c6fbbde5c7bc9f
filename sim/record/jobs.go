package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
)

// Job is a job as clients submit it.
type Job struct {
	Callback map[string]any
	Attempts int
	Retry    checker.Retry
	// Deadline is that of its occurrences, and Spread the window over which they are moved; zero for none.
	Deadline, Spread time.Duration
	// Every, with End and CatchUp, makes a crontab. Wait makes a delay. Else there are instants, which may be submitted as
	// the steps of a sequence.
	Every    time.Duration
	End      time.Time
	CatchUp  string
	Wait     time.Duration
	Instants []time.Time
	Steps    bool
	// Past is the treatment of instants that have passed; empty for the default.
	Past string
}

// Body returns the body of a request that submits it.
func (j *Job) Body() map[string]any {
	instant := func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
	d := map[string]any{
		"callback": j.Callback,
		"retry":    Policy(max(1, j.Attempts), j.Retry),
	}
	if j.Past != "" {
		d["past"] = j.Past
	}
	if j.Deadline > 0 {
		d["deadline"] = j.Deadline.String()
	}
	if j.Spread > 0 {
		d["spread"] = j.Spread.String()
	}
	switch {
	case j.Every > 0:
		d["crontab"], d["endAt"] = fmt.Sprintf("*/%d * * * * *", j.Every/time.Second), instant(j.End)
		d["catchUp"] = j.CatchUp
	case j.Wait > 0:
		d["delay"] = j.Wait.String()
	case j.Steps:
		steps := []any{map[string]any{"type": "job"}}
		for i, at := range j.Instants[1:] {
			steps = append(steps, map[string]any{
				"type": "wait_certain_period", "delay_unit": "second", "delay_period": at.Sub(j.Instants[i]).Seconds(),
			}, map[string]any{"type": "job"})
		}
		d["startAt"], d["steps"] = instant(j.Instants[0]), steps
	default:
		schedules := make([]string, len(j.Instants))
		for i, at := range j.Instants {
			schedules[i] = instant(at)
		}
		d["schedules"] = schedules
	}
	return d
}

// Whole makes the body of a submission a merge patch that leaves none of a job's members as they are.
func Whole(body map[string]any) map[string]any {
	Remove(body, "schedules", "crontab", "endAt", "catchUp", "delay", "startAt", "steps", "deadline", "spread")
	return body
}

// Remove has a merge patch remove those of some members that it does not set.
func Remove(patch map[string]any, members ...string) {
	for _, m := range members {
		if _, set := patch[m]; !set {
			patch[m] = nil
		}
	}
}

// Retry is the policy of jobs that have no other one.
var Retry = checker.Retry{Initial: 500 * time.Millisecond, Max: 4 * time.Second, Factor: 2}

// Policy is the retry policy of a job with a number of attempts, as clients submit it.
func Policy(attempts int, r checker.Retry) map[string]any {
	return map[string]any{
		"maxAttempts": attempts, "initial": r.Initial.String(), "max": r.Max.String(), "factor": r.Factor,
	}
}

// Batch gives each put of a batch its part of the batch's own answer. It returns the next instants that the answer
// names, or empty texts.
func Batch(batch *checker.Op, puts []checker.Op) (next []string) {
	type result struct {
		Index, Status, Skipped, Settled, InFlight int
		Detail, NextInstant                       string
	}
	results := map[int]result{}
	if batch.Status == http.StatusOK {
		for line := range bytes.Lines(batch.Body) {
			var r result
			if err := json.Unmarshal(line, &r); err == nil {
				results[r.Index] = r
			}
		}
	}
	for i := range puts {
		one := &puts[i]
		one.Invoked, one.Arrived, one.Returned = batch.Invoked, batch.Arrived, batch.Returned
		one.Caller, one.Secret = batch.Caller, batch.Secret
		one.Ahead, one.Behind, one.Several = batch.Ahead, batch.Behind, true
		r, told := results[i]
		switch {
		case told:
			one.Status, one.Skipped, one.Settled, one.InFlight = r.Status, r.Skipped, r.Settled, r.InFlight
			one.Unchanged = r.Status >= 400 && r.Status < 500 || strings.Contains(r.Detail, NothingChanged)
		case batch.Status != http.StatusOK:
			one.Status, one.Unchanged = batch.Status, batch.Unchanged
		default: // it was cut off
		}
		next = append(next, r.NextInstant)
	}
	return next
}

// Parts returns the parts of a cancellation by prefix, one for each of some keys that begin with it.
func Parts(cancel *checker.Op, keys []string) (parts []checker.Op) {
	for _, key := range keys {
		if strings.HasPrefix(key, cancel.Prefix) {
			one := *cancel
			one.Key, one.Part, one.Several = key, len(parts), true
			parts = append(parts, one)
		}
	}
	return parts
}

// Placed notes the instant of a job with a delay: the one that the answer tells, or else the bounds of it, as the
// request may take effect some time late, and by a clock that is wrong by some seconds.
func Placed(o *checker.Op, wait, late time.Duration, next string) {
	if wait == 0 || o.Unchanged {
		return
	}
	if at, err := time.Parse(time.RFC3339, next); err == nil {
		o.Schedule.Instants = []time.Time{at}
		return
	}
	const wrong = 15 * time.Second
	o.Schedule.From, o.Schedule.To = o.Invoked.Add(wait-wrong), o.Invoked.Add(wait+wrong+late)
}
