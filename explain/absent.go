package explain

import (
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// gone answers for a job that does not exist.
func (e *explainer) gone() {
	change := e.change(time.Time{}, history.Cancelled, history.Created, history.Replaced, history.Patched,
		history.Paused, history.Resumed)
	switch {
	case change != nil && change.Kind == history.Cancelled:
		e.add(e.cancelled(change))
	case e.change(e.Now.Add(-e.Retain), history.Created, history.Replaced) != nil: // it can't have been removed yet
		e.add(Fact{
			Code: Unknown,
			headline: "There is no job " + e.Name.Key + " any more. Its history does not tell of a cancellation yet; " +
				"ask again in a second.",
			Text: "History knows the job, which could not have been removed yet as one that had finished. A cancellation " +
				"appears in history about a second later.",
		})
	case len(e.Entries) > 0:
		e.add(Fact{
			Code:     Finished,
			headline: "There is no job " + e.Name.Key + " any more: it had finished, and its retention is over.",
			Text: "History knows the job, and does not tell of a cancellation: it had finished, and was removed when its " +
				"retention was over.",
		})
	default:
		f := Fact{
			Code:     Unknown,
			headline: "There is no job " + e.Name.Key + ", and history does not know one.",
			Text:     "There is no job with this key, and history has nothing of one" + e.keptFor() + ".",
		}
		if !e.Kept.On {
			f.headline = "There is no job " + e.Name.Key + "; whether there was one is not known."
			f.Text = "There is no job with this key."
		}
		e.add(f)
	}
	if f, ok := e.notKept(orNow(e.At, e.Now)); ok {
		e.add(f)
	}
}

// keptFor writes how far history reaches.
func (e *explainer) keptFor() string {
	if !e.Kept.On || e.Kept.For == 0 {
		return ""
	}
	return ", which is kept for " + span(e.Kept.For)
}

// cancelled returns the fact that the job was cancelled.
func (e *explainer) cancelled(change *history.Entry) Fact {
	what := "The job " + e.Name.Key
	if !e.At.IsZero() {
		what = e.delivery() + " does not fire: the job"
	}
	return Fact{
		Code: Cancelled, At: change.At, By: change.By, Request: change.Request,
		headline: fmt.Sprintf("%s was cancelled at %s%s.", what, moment(change.At), by(change)),
		Text: fmt.Sprintf("The job was cancelled at %s, %s%s. What nobody had claimed by then never fires, and what was "+
			"being sent is not retried.", moment(change.At), ago(change.At, e.Now), by(change)),
	}
}

// replaced returns the fact that the job's definition was replaced; the change may be unknown.
func (e *explainer) replaced(at time.Time, change *history.Entry) Fact {
	f := Fact{Code: Replaced, At: at}
	what := ""
	if change != nil {
		f.By, f.Request = change.By, change.Request
		if len(change.Fields) > 0 {
			what = "; what differs: " + list(change.Fields)
		}
	}
	f.headline = fmt.Sprintf("%s does not fire: the job was replaced at %s%s.", e.delivery(), moment(at), by(change))
	f.Text = fmt.Sprintf("The job was replaced at %s, %s%s%s. Earlier definitions are not kept.",
		moment(at), ago(at, e.Now), by(change), what)
	return f
}

// present returns the time at which the present definition of the job took effect, and whether it has replaced an
// earlier one.
func (e *explainer) present() (since time.Time, replaced bool) {
	since = e.Job.Revision.Time()
	// A job that was created and never replaced has its creation's time, by a clock that may differ.
	return since, !e.Job.CreatedAt.Equal(e.Job.UpdatedAt) && since.Sub(e.Job.CreatedAt) > time.Second
}

// absent answers for an instant without an occurrence in the store or in history.
func (e *explainer) absent() {
	since, replaced := e.present()
	switch {
	case e.err != nil:
		e.add(Fact{
			Code: Unknown, Error: e.err.Error(),
			headline: "The instants of the job's schedule can't be computed here.",
			Text:     "The replica that answers can't compute the instants of the job's schedule: " + e.err.Error() + ".",
		})
	case e.At.IsZero():
		e.add(e.noneYet())
	case !e.around.Is && e.around.ClockChange.Kind != job.Unaffected:
		e.add(e.clockChange())
	case !e.around.Is && replaced && e.At.Before(since) && !e.At.Before(e.Job.CreatedAt):
		e.earlier(since)
	case !e.around.Is:
		e.add(e.noSuch())
		e.predecessor()
		switch change := e.change(since.Add(-time.Minute), history.Replaced); {
		case replaced && change != nil:
			e.add(e.replaced(change.At, change))
		case replaced: // history does not have it yet, or no longer
			e.add(e.replaced(since, nil))
		default:
		}
	case e.Job.Schedule.Recurs():
		e.absentTick(since, replaced)
	case e.At.Before(since):
		e.absentPast(since, replaced)
	default:
		e.settled()
	}
}

// earlier answers for a time before the present definition took effect.
func (e *explainer) earlier(since time.Time) {
	change := e.firstChange(e.At, history.Replaced)
	if change != nil {
		since = change.At
	}
	f := e.replaced(since, change)
	f.headline = fmt.Sprintf("The job was replaced at %s%s, after %s: nothing is known of that time.",
		moment(since), by(change), moment(e.At))
	missing, notKept := e.notKept(e.At)
	if !notKept && !e.Kept.Failures {
		f.headline = fmt.Sprintf("Nothing was sent for %s before the job was replaced at %s%s.",
			moment(e.At), moment(since), by(change))
	}
	e.add(f)
	if notKept {
		e.add(missing)
	}
}

func (e *explainer) noneYet() Fact {
	f := Fact{Code: NoSuchInstant, headline: "No instant of the job has come yet."}
	f.Text = f.headline
	if next := e.around.After; !next.IsZero() {
		f.Next = next
		f.Text = fmt.Sprintf("The first one is %s, %s.", moment(next), ago(next, e.Now))
	}
	return f
}

func (e *explainer) noSuch() Fact {
	f := Fact{Code: NoSuchInstant}
	var near string
	switch before, after := e.around.Before, e.around.After; {
	case !before.IsZero() && !after.IsZero():
		near = fmt.Sprintf("the nearest ones are %s and %s", moment(before), moment(after))
	case !before.IsZero():
		near = "the last one is " + moment(before)
	case !after.IsZero():
		near = "the first one is " + moment(after)
	default:
		near = "it has none"
	}
	f.headline = fmt.Sprintf("The job has no instant %s; %s.", moment(e.At), near)
	s := &e.Job.Schedule
	switch {
	case s.Recurs():
		f.Text = fmt.Sprintf("The crontab %q", s.Crontab.String())
		if resolved := s.Crontab.Resolved(); resolved != s.Crontab.String() {
			f.Text += fmt.Sprintf(", for this key %q,", resolved)
		}
		zone := s.Zone
		if zone == "" {
			zone = "UTC"
		}
		f.Text += " in " + zone + " has no such instant; " + near + "."
		if !s.EndAt.IsZero() && e.At.After(s.EndAt) {
			f.Text += " It ends at " + moment(s.EndAt) + "."
		}
	default:
		f.Text = "The schedule has no such instant; " + near + "."
	}
	if e.At.Before(e.Job.CreatedAt) {
		f.Text += fmt.Sprintf(" The job was created at %s.", moment(e.Job.CreatedAt))
	}
	return f
}

// predecessor adds that another job of the same key was cancelled, if the time lies before the creation of this one.
func (e *explainer) predecessor() {
	if !e.At.Before(e.Job.CreatedAt) {
		return
	}
	for i := range e.Entries {
		if c := &e.Entries[i]; c.Kind == history.Cancelled && c.Instant.IsZero() && c.At.Before(e.Job.CreatedAt) {
			f := e.cancelled(c)
			f.Text = fmt.Sprintf("An earlier job with this key was cancelled at %s%s.", moment(c.At), by(c))
			e.add(f)
			return
		}
	}
}

// clockChange returns the fact that a change of the clocks displaced an instant.
func (e *explainer) clockChange() Fact {
	c := e.around.ClockChange
	f := Fact{Code: SkippedByClockChange, At: c.At}
	clock := c.Wall.Format("2006-01-02 15:04:05")
	zone := e.Job.Schedule.Zone
	switch c.Kind {
	case job.OnlyFirst:
		f.headline = fmt.Sprintf("%s is the second time that clocks in %s show %s; the job fires the first time only, at %s.",
			moment(e.At), zone, clock, moment(c.At))
		f.Text = "The clocks are set back then. A fixed time that comes twice fires once."
	case job.Moved:
		f.headline = fmt.Sprintf("Clocks in %s never show %s; the job fires right after the gap instead, at %s.",
			zone, clock, moment(c.At))
		f.Text = "The clocks are set forward then. A fixed time in the gap fires right after it."
	default:
		f.headline = fmt.Sprintf("Clocks in %s never show %s, and nothing fires for it; the gap ends at %s.",
			zone, clock, moment(c.At))
		f.Text = "The clocks are set forward then. Times in the gap are left out if the minute or the hour begins with *."
	}
	return f
}

// absentTick answers for an instant of a schedule that recurs.
func (e *explainer) absentTick(since time.Time, replaced bool) {
	j := e.Job
	switch {
	case !j.Cursor.IsZero() && e.At.After(j.Cursor) && !j.PausedAt.IsZero():
		e.add(e.jobPaused())
	case !j.Cursor.IsZero() && e.At.After(j.Cursor) && e.Tenant.Paused:
		e.add(e.tenantPaused(), e.notExpanded())
	case !j.Cursor.IsZero() && e.At.After(j.Cursor):
		e.add(e.notExpanded())
	case !e.At.After(since) && replaced:
		e.earlier(since)
	case !e.At.After(since):
		e.add(e.noSuch())
		e.predecessor()
	default:
		e.settled()
	}
}

func (e *explainer) notExpanded() Fact {
	f := Fact{Code: NotExpandedYet, Next: e.firesAt(nil)}
	if !e.At.After(e.Now) {
		f.headline = e.delivery() + " is late: the crontab has not been expanded so far."
		f.Text = fmt.Sprintf("The crontab is expanded up to %s. The next replica that expands it applies the catch-up rule "+
			"to later instants.", moment(e.Job.Cursor))
		return f
	}
	f.headline = fmt.Sprintf("%s is due %s.", e.delivery(), ago(f.Next, e.Now))
	f.Text = fmt.Sprintf("It is an instant of the crontab, due at %s. The next instants of a crontab are put into the "+
		"store a few minutes ahead; so far, those up to %s are there.", moment(f.Next), moment(e.Job.Cursor))
	return f
}

// absentPast answers for an instant that had passed when the present definition was submitted.
func (e *explainer) absentPast(since time.Time, replaced bool) {
	switch whole := e.Job.Schedule.Size() == e.Job.Planned; {
	case whole && e.Job.Options.Overdue(e.At, since):
		e.add(e.missed(since))
	case whole:
		e.settled()
	case replaced:
		f := Fact{
			Code: SkippedAsPast, At: since,
			headline: fmt.Sprintf("%s had passed when the job was replaced at %s, and does not fire again.",
				moment(e.At), moment(since)),
			Text: "Instants that have passed when a job is replaced are skipped, unless they were settled before.",
		}
		if missing, ok := e.notKept(e.At); ok {
			e.add(f, missing)
			return
		}
		f.Text += " History has no attempt."
		e.add(f)
	default:
		e.add(Fact{
			Code: SkippedAsPast, At: since,
			headline: fmt.Sprintf("%s had passed when the job was submitted at %s, and was skipped.",
				moment(e.At), moment(since)),
			Text: `The submission had "past": "skip".`,
		})
	}
}

// settled answers for an instant that the job was given, and that is no longer pending, from the job's counts and from
// the lack of history.
func (e *explainer) settled() {
	j := e.Job
	missing, notKept := e.notKept(e.At)
	switch t := j.Trouble; {
	case t.Instant.Equal(e.At) && t.Missed:
		e.add(e.missed(t.At))
		return
	case t.Instant.Equal(e.At):
		f := Fact{
			Code: Dead, At: t.At, Error: t.Error,
			headline: fmt.Sprintf("%s was given up: it %s.", e.delivery(), refusal(0, t.Error)),
			Text: fmt.Sprintf("It was given up. The last attempt %s. Its dead letter is no longer there.",
				refusal(0, t.Error)),
		}
		e.add(f)
	case j.Planned > 0 && j.Missed == 0 && j.Failed == 0:
		e.add(e.unrecorded("the job has missed and given up none of its instants"))
	case !notKept && e.Kept.Failures && j.Missed == 0:
		e.add(e.unrecorded("history, which leaves out deliveries, has no failure of it"))
	case !notKept && j.Missed > 0 && !e.At.After(t.Instant):
		f := e.missed(time.Time{})
		f.Text += fmt.Sprintf(" History has no attempt, and the job has missed %s of its instants.", number(j.Missed))
		e.add(f)
	case e.Now.Sub(e.At) < settling:
		e.add(e.recent())
	case !notKept:
		e.add(e.unknown())
	default:
		missing.headline = e.delivery() + " is no longer pending, and its history is not kept."
		e.add(missing)
		return
	}
	if notKept {
		e.add(missing)
	}
}

// notKept returns the fact that entries of an occurrence from a time on are missing in history, or may be.
func (e *explainer) notKept(from time.Time) (f Fact, ok bool) {
	f.Code = NotKept
	if from.After(e.Now) {
		from = e.Now
	}
	switch k := e.Kept; {
	case !k.On:
		f.Text = "No history is kept."
	case from.Before(k.from(e.Now)):
		f.Since = k.from(e.Now)
		f.Text = fmt.Sprintf("History is kept for %s: it begins at %s.", span(k.For), moment(f.Since))
	case k.Gap != nil && !k.Gap.Until.Before(from):
		f.Since, f.Until = k.Gap.From, k.Gap.Until
		f.Text = fmt.Sprintf("Entries of history may be missing from %s to %s: the store was slow or away, a replica died, "+
			"or the job has had too many.", moment(f.Since), moment(f.Until))
	default:
		return Fact{}, false
	}
	f.headline = f.Text
	return f, true
}

// finished puts the end of the job's schedule before all other facts.
func (e *explainer) finished() {
	f := Fact{Code: Finished, Text: "The job has nothing left to fire."}
	f.headline = f.Text
	if !e.At.IsZero() {
		f.headline = fmt.Sprintf("The job has nothing left to fire; its last instant was %s.", moment(e.At))
	}
	e.answer.Facts = append([]Fact{f}, e.answer.Facts...)
}

// context adds other facts that affect a pending instant.
func (e *explainer) context() {
	if e.Job == nil || !e.around.Is || len(e.Pending) > 1 {
		return
	}
	if c := e.around.ClockChange; c.Kind == job.Moved {
		e.add(Fact{Code: Moved, At: e.At, Text: "The clocks change then: " + c.String() + "."})
	}
	spread := e.Job.Options.Spread != 0 && e.Job.Schedule.Subscribers.Raw() == nil
	if moved := e.firesAt(nil); spread && !moved.Equal(e.At) {
		e.add(Fact{Code: Moved, At: moved, Text: fmt.Sprintf(
			"The job's spread of %s moves it by %s, to %s; receivers still see the instant.",
			span(time.Duration(e.Job.Options.Spread)), span(moved.Sub(e.At)), moment(moved))})
	}
}
