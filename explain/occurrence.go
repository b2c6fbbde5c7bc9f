package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// one answers for an instant with one occurrence.
func (e *explainer) one(s *subject) {
	e.place(s)
	switch {
	case s.pending != nil && s.pending.Held(e.Now):
		e.held(s)
	case s.pending != nil:
		e.pending(s)
	case s.dead != nil:
		e.dead(s)
	default:
		e.past(s)
	}
	e.told(s)
}

// delivery names the occurrence in a sentence.
func (e *explainer) delivery() string { return "The delivery of " + moment(e.At) }

// maxAttempts returns the largest number of attempts; zero if it is unknown.
func (e *explainer) maxAttempts() int {
	if e.Job == nil {
		return 0
	}
	return e.Job.Options.Retry.WithDefaults().MaxAttempts
}

// attempt writes "attempt 2 of 5".
func (e *explainer) attempt(n int) string {
	if most := e.maxAttempts(); most >= n {
		return fmt.Sprintf("attempt %s of %s", number(n), number(most))
	}
	return "attempt " + number(n)
}

// held answers for an occurrence that a replica is sending.
func (e *explainer) held(s *subject) {
	o := s.pending
	e.add(Fact{
		Code: Held, Since: o.ScheduledAt, Until: o.DueAt, Attempt: o.Attempt,
		headline: fmt.Sprintf("%s is being sent: a replica has held it since %s.", e.delivery(), moment(o.ScheduledAt)),
		Text: fmt.Sprintf("A replica claimed it at %s, %s, and is making %s; the claim ends at %s.",
			moment(o.ScheduledAt), ago(o.ScheduledAt, e.Now), e.attempt(o.Attempt), moment(o.DueAt)),
	})
	switch {
	case o.LastError != "":
		e.add(e.trouble(s))
	case o.Attempt > 1: // each attempt that ends and is followed by another leaves an error
		e.add(Fact{
			Code: LeaseOver, Attempt: o.Attempt - 1,
			Text: fmt.Sprintf("The end of attempt %s is not known: its replica died, or did not reach the store in time. The "+
				"receiver may have taken it.", number(o.Attempt-1)),
		})
	}
}

// pending answers for an occurrence that no replica holds.
func (e *explainer) pending(s *subject) {
	o := s.pending
	standalone := o.Revision == ""
	parking := job.ParkingOf(o.LastError)
	late := !o.DueAt.After(e.Now)
	stale := o.Token != "" && late
	switch {
	case e.Tenant.Paused:
		e.add(e.tenantPaused())
	case e.Job != nil && !e.Job.PausedAt.IsZero() && !standalone:
		e.add(e.jobPaused())
	case stale:
		e.add(e.leaseOver(o))
	case late && e.Replicas == 0:
		e.add(e.noReplica())
	case late && e.Queue != nil && e.Queue.Ahead > 0:
		e.add(e.backlog(e.Queue))
	case late:
		e.add(e.due(o))
	}
	switch {
	case stale, e.putBack(o):
	case o.LastError == "" && !late:
		e.add(e.waiting(o))
	case parking == job.AtLimit:
		e.add(e.limited(o))
	case parking == job.Down:
		e.add(e.down(o))
	case o.LastError != "":
		e.add(e.trouble(s))
	}
	if parking != job.Down && !e.Destination.DownSince.IsZero() {
		e.add(e.circuit())
	}
	if most := e.Tenant.MaxInFlight; late && most > 0 && !e.Tenant.Paused {
		e.add(Fact{Code: TenantLimited, Count: most, Text: fmt.Sprintf(
			"Each replica has at most %s of the tenant's callbacks under way at once.", number(most))})
	}
}

// putBack reports that an occurrence of a paused job is due later than its time only because of the pause.
func (e *explainer) putBack(o *job.Occurrence) bool {
	return e.Job != nil && !e.Job.PausedAt.IsZero() && o.Revision != "" && o.LastError == "" &&
		!e.firesAt(o).After(e.Now)
}

func (e *explainer) tenantPaused() Fact {
	f := Fact{Code: TenantPaused, By: e.Tenant.PausedBy}
	since := ""
	if e.Tenant.PausedAt != 0 {
		f.Since = time.UnixMilli(e.Tenant.PausedAt).UTC()
		since = " since " + moment(f.Since)
	}
	who := by(&history.Entry{By: f.By})
	f.headline = fmt.Sprintf("%s does not fire: its tenant %s has been paused%s%s.",
		e.delivery(), e.Name.Tenant, since, who)
	f.Text = fmt.Sprintf("Tenant %s has been paused%s%s. None of its jobs fires until the tenant is resumed; then this "+
		"one is due at once, or at its time if that has not come.", e.Name.Tenant, since, who)
	return f
}

func (e *explainer) jobPaused() Fact {
	since := e.Job.PausedAt
	f := Fact{Code: JobPaused, Since: since}
	// The entry is made a little after the pause, perhaps by another replica's clock.
	entry := e.change(since.Add(-time.Minute), history.Paused)
	if entry != nil {
		f.By, f.Request = entry.By, entry.Request
	}
	f.headline = fmt.Sprintf("%s does not fire: the job has been paused since %s%s.",
		e.delivery(), moment(since), by(entry))
	f.Text = fmt.Sprintf("The job was paused at %s, %s%s. Its instants wait until it is resumed.",
		moment(since), ago(since, e.Now), by(entry))
	return f
}

func (e *explainer) leaseOver(o *job.Occurrence) Fact {
	return Fact{
		Code: LeaseOver, Since: o.DueAt, Attempt: o.Attempt,
		headline: fmt.Sprintf("%s has no outcome yet: the replica that claimed it at %s has not told it in time.",
			e.delivery(), moment(o.ScheduledAt)),
		Text: fmt.Sprintf("A replica claimed it at %s for %s and its claim ended at %s without an outcome: the replica has "+
			"died, or does not reach the store. Another replica sends it again. Receivers know a repeat by the delivery id.",
			moment(o.ScheduledAt), e.attempt(o.Attempt), moment(o.DueAt)),
	}
}

func (e *explainer) noReplica() Fact {
	return Fact{
		Code:     NoReplica,
		headline: e.delivery() + " is due, and no replica is running that could send it.",
		Text:     "No replica has told of itself lately, so nothing fires. Start one, or look at its /readyz.",
	}
}

func (e *explainer) backlog(q *Queue) Fact {
	f := Fact{Code: Backlog, Next: q.start(e.Now)}
	before := "others"
	if q.Known {
		f.Count = q.Ahead
		before = number(q.Ahead) + " others"
		if q.Ahead == 1 {
			before = "another one"
		}
		if q.AtLeast {
			before = "at least " + before
		}
	}
	start := ""
	if !f.Next.IsZero() {
		start = "; it is likely to start about " + moment(f.Next)
	}
	f.headline = fmt.Sprintf("%s is due and waits behind %s%s.", e.delivery(), before, start)
	f.Text = fmt.Sprintf("Of tenant %s, %s of the same priority became due before it", e.Name.Tenant, before)
	if q.Known && q.PerSecond > 0 {
		f.Text += fmt.Sprintf("; all replicas together have lately settled %.1f per second, of which the tenant gets %.0f %%",
			q.PerSecond, 100*q.Share)
	}
	f.Text += start + "."
	return f
}

func (e *explainer) due(o *job.Occurrence) Fact {
	return Fact{
		Code: Due, Since: o.DueAt,
		headline: fmt.Sprintf("%s is due since %s, and the next free replica sends it.", e.delivery(), moment(o.DueAt)),
		Text: fmt.Sprintf("It is due since %s, %s, and nobody holds it. Nothing of its lane became due before it.",
			moment(o.DueAt), ago(o.DueAt, e.Now)),
	}
}

func (e *explainer) waiting(o *job.Occurrence) Fact {
	return Fact{
		Code: Waiting, Next: o.DueAt,
		headline: fmt.Sprintf("%s is due %s.", e.delivery(), ago(o.DueAt, e.Now)),
		Text:     fmt.Sprintf("Its time has not come: it fires at %s, %s.", moment(o.DueAt), ago(o.DueAt, e.Now)),
	}
}

// again writes when an occurrence is tried again.
func (e *explainer) again(o *job.Occurrence) string {
	if o.DueAt.After(e.Now) {
		return fmt.Sprintf("is tried again at %s, %s", moment(o.DueAt), ago(o.DueAt, e.Now))
	}
	return "is due again"
}

// limited answers for an occurrence that its destination has no room for.
func (e *explainer) limited(o *job.Occurrence) Fact {
	return Fact{
		Code: DestinationLimited, Next: o.DueAt, Error: o.LastError, Destination: e.Destination.Name,
		headline: fmt.Sprintf("%s waits for its destination, which is at a limit; it %s.", e.delivery(), e.again(o)),
		Text: fmt.Sprintf("It was given back unsent, and no attempt was spent, because %s. It %s.",
			destinationIs(o.LastError), e.again(o)),
	}
}

// down answers for an occurrence that is not sent because its destination has failed again and again.
func (e *explainer) down(o *job.Occurrence) Fact {
	f := Fact{
		Code: DestinationDown, Next: o.DueAt, Error: o.LastError, Destination: e.Destination.Name,
		Since: e.Destination.DownSince,
		headline: fmt.Sprintf("%s waits because its destination fails again and again; it %s.",
			e.delivery(), e.again(o)),
		Text: fmt.Sprintf("It was given back unsent, and no attempt was spent, because %s. It %s.",
			destinationIs(o.LastError), e.again(o)),
	}
	if !f.Since.IsZero() {
		f.Text += fmt.Sprintf(" The destination counts as down since %s, %s.", moment(f.Since), ago(f.Since, e.Now))
	}
	return f
}

// destinationIs makes a clause of the error with which a destination's callbacks are given back.
func destinationIs(parked string) string {
	parked = strings.TrimRight(parked, ". ")
	if strings.HasPrefix(parked, "the ") { // "the called part of …"
		return parked
	}
	return "the destination " + parked
}

// circuit returns the fact that the destination is down, for an occurrence that was not refused for that.
func (e *explainer) circuit() Fact {
	d := e.Destination
	return Fact{
		Code: DestinationDown, Since: d.DownSince, Destination: d.Name,
		Text: fmt.Sprintf("This replica has found the destination %s down since %s, %s: %s failures in a row. Only single "+
			"callbacks probe it until one succeeds.", d.Name, moment(d.DownSince), ago(d.DownSince, e.Now), number(d.Failures)),
	}
}

// trouble returns the failure of a pending occurrence's last attempt.
func (e *explainer) trouble(s *subject) Fact {
	o := s.pending
	f := Fact{Code: Retrying, Attempt: o.Attempt, Error: o.LastError, Next: o.DueAt}
	at := ""
	last := s.last()
	switch {
	case last != nil:
		f.At, f.Status, f.Destination, f.Replica = last.At, last.Status, last.Destination, last.Replica
		f.Attempt = last.Attempt
		at = " at " + moment(last.At)
		if f.Status != 0 {
			f.Error = ""
		}
		if last.Kind == history.Released {
			f.Code = Released
		}
	case o.Attempt == 0:
		f.Code = Released
	}
	if o.Held(e.Now) {
		f.Next = time.Time{}
	}
	if f.Code == Released {
		f.headline = fmt.Sprintf("%s could not be sent yet; it %s.", e.delivery(), e.again(o))
		f.Text = fmt.Sprintf("It was given back%s, and no attempt was spent: %s.", at, strings.TrimRight(o.LastError, ". "))
		if !f.Next.IsZero() {
			f.Text += fmt.Sprintf(" It %s.", e.again(o))
		}
		return f
	}
	f.headline = fmt.Sprintf("%s has failed %s; it %s.", e.delivery(), times(f.Attempt), e.again(o))
	if o.DueAt.After(e.Now) {
		f.headline = fmt.Sprintf("%s has failed %s; the %s attempt is due %s.",
			e.delivery(), times(f.Attempt), ordinal(f.Attempt+1), ago(o.DueAt, e.Now))
	}
	attempt := e.attempt(f.Attempt)
	f.Text = fmt.Sprintf("A%s%s %s.", attempt[1:], at, refusal(f.Status, o.LastError))
	if !f.Next.IsZero() {
		f.Text += fmt.Sprintf(" It %s.", e.again(o))
	}
	return f
}

// last returns the newest attempt; nil if history has none.
func (s *subject) last() *history.Entry { return s.newest(0, history.Kind.Attempt) }

// newest returns the n-th newest entry of some kinds; nil if there is none.
func (s *subject) newest(n int, of func(history.Kind) bool) *history.Entry {
	for i := range s.entries {
		if of(s.entries[i].Kind) {
			if n == 0 {
				return &s.entries[i]
			}
			n--
		}
	}
	return nil
}

// dead answers for a dead letter.
func (e *explainer) dead(s *subject) {
	o := s.dead
	f := Fact{Code: Dead, At: o.FailedAt, Attempt: o.Attempt, Error: o.LastError}
	if last := s.last(); last != nil && last.Kind == history.Buried {
		f.Status, f.Destination, f.Replica = last.Status, last.Destination, last.Replica
	}
	e.add(e.givenUp(f))
	if strings.HasSuffix(o.LastError, pastDeadline) && f.Status != 0 {
		e.answer.Facts[0].Text += " The next attempt would have come after the deadline."
	}
	e.answer.Facts[0].Text += " It is kept as a dead letter, which can be redriven."
}

// pastDeadline ends the error of an occurrence that is given up before its last attempt.
const pastDeadline = "the next attempt would come after the deadline"

// givenUp completes the fact of an occurrence that was given up.
func (e *explainer) givenUp(f Fact) Fact {
	f.headline = fmt.Sprintf("%s was given up at %s after %s: it %s.",
		e.delivery(), moment(f.At), attempts(f.Attempt), refusal(f.Status, f.Error))
	f.Text = fmt.Sprintf("It was given up at %s, %s, after %s. The last one %s.",
		moment(f.At), ago(f.At, e.Now), attempts(f.Attempt), refusal(f.Status, f.Error))
	return f
}

func attempts(n int) string {
	if n == 1 {
		return "one attempt"
	}
	return number(n) + " attempts"
}

// past answers for an occurrence that only history has.
func (e *explainer) past(s *subject) {
	newest := &s.entries[0]
	switch newest.Kind {
	case history.Delivered:
		e.add(e.delivered(newest))
		if before := s.newest(1, history.Kind.Attempt); before != nil {
			e.add(e.before(before))
		}
	case history.Missed:
		e.add(e.missed(newest.At))
	case history.Buried:
		f := e.givenUp(Fact{
			Code: Dead, At: newest.At, Attempt: newest.Attempt, Status: newest.Status, Error: newest.Error,
			Destination: newest.Destination, Replica: newest.Replica,
		})
		f.Text += " Its dead letter is no longer there: dead letters are kept for a limited time."
		e.add(f)
	case history.Discarded:
		e.add(Fact{
			Code: Discarded, At: newest.At, By: newest.By, Request: newest.Request,
			headline: fmt.Sprintf("%s was given up, and its dead letter was deleted at %s%s.",
				e.delivery(), moment(newest.At), by(newest)),
			Text: fmt.Sprintf("Its dead letter was deleted at %s, %s%s.",
				moment(newest.At), ago(newest.At, e.Now), by(newest)),
		})
		if buried := s.last(); buried != nil {
			e.add(e.before(buried))
		}
	default:
		e.ended(newest)
	}
}

// delivered returns the fact of a delivery.
func (e *explainer) delivered(entry *history.Entry) Fact {
	meant, than := e.At, "its instant"
	if e.Job != nil && e.Job.Options.Spread != 0 && entry.Kind == history.Delivered && entry.Position == 0 {
		o := job.Occurrence{Timestamp: e.At, Revision: e.Job.Revision}
		if entry.Subscriber != "" {
			o.Part = &job.Part{Subscriber: entry.Subscriber}
		}
		if meant = e.firesAt(&o); !meant.Equal(e.At) {
			than = "the time that its spread gives it"
		}
	}
	on := ""
	if entry.Attempt > 1 {
		on = ", on the " + ordinal(entry.Attempt) + " attempt"
	}
	f := Fact{
		Code: Delivered, At: entry.At, Attempt: entry.Attempt, Destination: entry.Destination, Replica: entry.Replica,
		headline: fmt.Sprintf("%s was delivered at %s, %s%s.",
			e.delivery(), moment(entry.At), deviation(entry.At.Sub(meant), than), on),
	}
	f.Text = fmt.Sprintf("Attempt %s was sent at %s to %s, and the receiver took it within %s.",
		number(entry.Attempt), moment(entry.At), entry.Destination, span(max(entry.Took, time.Millisecond)))
	return f
}

// before returns the fact of an earlier attempt that failed, or whose end is unknown.
func (e *explainer) before(entry *history.Entry) Fact {
	f := Fact{
		Code: Retrying, At: entry.At, Attempt: entry.Attempt, Status: entry.Status, Error: entry.Error,
		Destination: entry.Destination, Replica: entry.Replica,
		Text: fmt.Sprintf("Attempt %s at %s %s.",
			number(entry.Attempt), moment(entry.At), refusal(entry.Status, entry.Error)),
	}
	switch entry.Kind {
	case history.Released:
		f.Code = Released
	case history.Buried:
		f.Code = Dead
	case history.Unknown:
		f.Code = LeaseOver
		f.Text = fmt.Sprintf("The end of attempt %s is not known, which was noticed at %s: its replica died, or did not "+
			"reach the store in time. The receiver may have taken it.", number(entry.Attempt), moment(entry.At))
	default:
	}
	return f
}

// missed returns the fact that the occurrence was dropped at a time, which may be unknown.
func (e *explainer) missed(at time.Time) Fact {
	f := Fact{Code: Missed, At: at}
	when := ""
	if !at.IsZero() {
		when = fmt.Sprintf(" at %s, %s after its instant", moment(at), span(at.Sub(e.At)))
	}
	rule := "the job's deadline or its catch-up rule does not let it fire so late"
	if e.Job != nil {
		o := &e.Job.Options
		switch {
		case o.Overdue(e.At, at):
			rule = "its deadline, " + span(time.Duration(o.Deadline)) + " after the instant, had passed"
		case e.Job.Schedule.Recurs() && o.CatchUp == job.CatchUpAll:
			rule = `its catch-up rule is "all", which fires a limited number of late instants, and there were more`
		case e.Job.Schedule.Recurs() && o.CatchUp == job.CatchUpNone:
			rule = `its catch-up rule is "none", by which late instants do not fire`
		case e.Job.Schedule.Recurs():
			rule = `its catch-up rule is "latest", by which only the latest of several late instants fires`
		}
	}
	f.headline = fmt.Sprintf("%s was missed: %s.", e.delivery(), rule)
	f.Text = fmt.Sprintf("It was dropped unsent%s: %s.", when, rule)
	return f
}

// ended answers for an occurrence that was attempted, triggered or redriven, and then disappeared without an outcome in
// history.
func (e *explainer) ended(newest *history.Entry) {
	since := newest.At
	if !newest.Claimed.IsZero() { // an occurrence that is cancelled while it is held is never retried
		since = newest.Claimed
	}
	change := e.firstChange(since, history.Cancelled, history.Replaced)
	missing, notKept := e.notKept(newest.At)
	switch {
	case change != nil && change.Kind == history.Cancelled:
		e.add(e.cancelled(change))
	case change != nil:
		e.add(e.replaced(change.At, change))
	case notKept:
		missing.headline = e.delivery() + " is no longer pending, and its history is not kept."
		e.add(missing)
	case e.Now.Sub(newest.At) < settling, e.Now.Sub(newest.Next) < settlingAttempt:
		e.add(e.recent())
	case e.Kept.Failures:
		e.add(e.unrecorded("history, which leaves out deliveries, has no later failure of it"))
	default:
		e.add(e.unknown())
	}
	if newest.Kind.Attempt() {
		e.add(e.before(newest))
	}
}

// unrecorded returns the fact of a delivery that history does not have, and the reason that it is known.
func (e *explainer) unrecorded(why string) Fact {
	return Fact{
		Code: Delivered, headline: e.delivery() + " was delivered; when is not known.",
		Text: "It is no longer pending, and " + why + ": it was delivered.",
	}
}

// unknown returns the fact that an outcome is unknown.
func (e *explainer) unknown() Fact {
	return Fact{
		Code:     Unknown,
		headline: e.delivery() + " is no longer pending, and history does not tell its outcome.",
		Text: "It is no longer pending, and history has no outcome of it. If it has ended a moment ago, the outcome " +
			"appears in a second or so.",
	}
}

// settling is the time after which the history of an outcome has surely been written, unless it was dropped.
const settling = 3 * time.Second

// settlingAttempt is the same, from the time at which an attempt was due: it may have been under way for a while.
const settlingAttempt = time.Minute

func (e *explainer) recent() Fact {
	return Fact{
		Code:     Unknown,
		headline: e.delivery() + " has just ended, and its outcome is still being written; ask again in a few seconds.",
		Text:     "It is no longer pending. Its outcome appears in history a second or so after the event.",
	}
}

// told adds the requests that made the occurrence.
func (e *explainer) told(s *subject) {
	for i := range s.entries {
		entry := &s.entries[i]
		f := Fact{At: entry.At, By: entry.By, Request: entry.Request}
		switch entry.Kind {
		case history.Triggered:
			f.Code, f.Text = Triggered, "It was triggered at "+moment(entry.At)+by(entry)+", beside the schedule."
		case history.Redriven:
			f.Code, f.Text = Redriven, "Its dead letter was redriven at "+moment(entry.At)+by(entry)+"."
		default:
			continue
		}
		e.add(f)
		return
	}
}
