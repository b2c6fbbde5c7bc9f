package handlers

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Recorder keeps entries of history. Record must not block, and must be safe for concurrent use.
type Recorder interface {
	Record(entries ...*history.Entry)
}

// record records changes of jobs by the caller of a context. It sets the time, the principal and the request of each
// entry.
func (a *api) record(ctx context.Context, changes ...*history.Entry) {
	if a.History == nil || len(changes) == 0 {
		return
	}
	now, by := a.now(), callerOf(ctx)
	for _, e := range changes {
		e.At = now
		if by != nil {
			e.By, e.Request = by.ID, by.request
		}
	}
	a.History.Record(changes...)
}

// appendChange appends the entry of a put that took effect.
func (a *api) appendChange(
	changes []*history.Entry, t *attempt, put *store.Put, replaced job.Revision,
) []*history.Entry {
	if a.History == nil || job.Reserved(put.Job.Key) { // no client has put it
		return changes
	}
	e := &history.Entry{Kind: history.Created, Name: put.Job.Name}
	if !t.outcome.created {
		e.Kind, e.From = history.Replaced, replaced
		before := t.before
		if t.state == replace {
			before = &t.present.Job
		}
		if before != nil {
			e.Fields = differences(before, &put.Job)
		}
	}
	return append(changes, e)
}

// mostMissed bounds the entries of missed occurrences of one submission.
const mostMissed = 100

// appendMissed appends the entries of occurrences that were submitted after their deadline, in order of their instants.
// If there are more than mostMissed, the first entry stands for all earlier ones too.
func appendMissed(to []*history.Entry, missed []job.Occurrence, now time.Time) []*history.Entry {
	if len(missed) == 0 || job.Reserved(missed[0].Name.Key) {
		return to
	}
	more := max(0, len(missed)-mostMissed)
	for i := range missed[more:] {
		e := &history.Entry{Kind: history.Missed, At: now, Error: "it was submitted after its deadline"}
		if i == 0 && more > 0 {
			e.Count = more + 1
			e.Error = fmt.Sprintf("%d occurrences up to this one were submitted after their deadlines", e.Count)
		}
		e.About(&missed[more+i])
		to = append(to, e)
	}
	return to
}

// recordMissed records instants that were missed at their submission, as the dispatcher records others.
func (a *api) recordMissed(missed []*history.Entry) {
	if len(missed) == 0 {
		return
	}
	for _, to := range []Recorder{a.History, a.Events} {
		if to != nil {
			to.Record(missed...)
		}
	}
}

// recordDead records the redrive or the deletion of dead letters.
func (a *api) recordDead(ctx context.Context, letters []job.Occurrence, outcome store.DeadOutcome) {
	if a.History == nil {
		return
	}
	kind := history.Redriven
	if outcome == store.Discard {
		kind = history.Discarded
	}
	changes := make([]*history.Entry, len(letters))
	for i := range letters {
		changes[i] = &history.Entry{Kind: kind}
		changes[i].About(&letters[i])
	}
	a.record(ctx, changes...)
}

// differences returns the names of the parts in which two definitions of a job differ, sorted: "schedule", "callback",
// and those of options.
func differences(before, after *job.Job) (parts []string) {
	if !before.Schedule.Same(&after.Schedule) {
		parts = append(parts, "schedule")
	}
	was, is := before.Draft(), after.Draft()
	if !bytes.Equal(mustEncode(was.Callback), mustEncode(is.Callback)) {
		parts = append(parts, "callback")
	}
	wasOptions, isOptions := members(was.OptionsDraft), members(is.OptionsDraft)
	for name, value := range isOptions {
		if !bytes.Equal(wasOptions[name], value) {
			parts = append(parts, name)
		}
	}
	for name := range wasOptions {
		if isOptions[name] == nil {
			parts = append(parts, name)
		}
	}
	slices.Sort(parts)
	return parts
}

// members returns the members of a document, each encoded.
func members(document any) (all map[string]jsontext.Value) {
	if err := json.Unmarshal(mustEncode(document), &all); err != nil { // it is an object
		panic(err)
	}
	return all
}
