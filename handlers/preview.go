package handlers

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// defaultCount is the number of instants in a preview.
const defaultCount = 10

// previewJob lists the next instants of an existing job.
func (a *api) previewJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	count, err := countParameter(c.Request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	now := a.now()
	status, err := a.readableJob(ctx, job.Name{Tenant: who(c).tenant, Key: key}, now)
	if err != nil {
		return err
	}
	return a.writePreview(c, &status.Job, now, now, count)
}

// previewDraft lists the instants of a job as if it were submitted now. A draft is checked like a submission, but the
// callback may be missing, and so may the key, unless the times follow from it.
func (a *api) previewDraft(c *gin.Context) error {
	count, err := countParameter(c.Request)
	if err != nil {
		return err
	}
	if err := refuseConditions(c.Request); err != nil {
		return err
	}
	body, err := a.readJSON(c)
	if err != nil {
		return err
	}
	draft, err := job.Decode(body)
	if err != nil {
		return withoutCallback(draft, err)
	}
	if field := draft.NeedsKey(); field != "" && draft.Key == "" {
		return job.InvalidField("/key", "is required: with this "+field+", the times follow from the key")
	}
	j, err := a.checkPreview(c.Request.Context(), who(c), draft)
	if err != nil {
		return err
	}
	now, past := a.now(), draft.PastOrDefault()
	if _, err := j.Begin(now, past, a.Expansion); err != nil {
		return err
	}
	from := now
	if past != job.PastSkip && !j.Schedule.Recurs() {
		from = time.Unix(0, 0) // past instants fire too
	}
	return a.writePreview(c, &j, from, now, count)
}

func countParameter(r *http.Request) (int, error) {
	query, err := readQuery(r, "count")
	if err != nil {
		return 0, err
	}
	return numberParameter(query, "count", defaultCount)
}

// withoutCallback removes from a body's error the fault that a callback is required.
func withoutCallback(draft job.Draft, err error) error {
	invalid, ok := errors.AsType[*job.Invalid](err)
	if !ok || draft.Callback != nil {
		return err
	}
	required := job.FieldError{Pointer: "/callback", Message: "is required"}
	return &job.Invalid{Fields: slices.DeleteFunc(invalid.Fields, func(f job.FieldError) bool { return f == required })}
}

// checkPreview makes a job of a draft, with placeholders for a missing key and callback.
func (a *api) checkPreview(ctx context.Context, by *caller, draft job.Draft) (job.Job, error) {
	draft.Key = cmp.Or(draft.Key, by.Scope.KeyPrefix, "preview")
	if draft.Callback != nil {
		s, err := a.check(ctx, by, draft)
		if err != nil {
			return job.Job{}, err
		}
		return s.job, nil
	}
	if !by.Scope.HasKey(draft.Key) {
		return job.Job{}, beyond(by.Scope)
	}
	draft.Callback = &job.CallbackDraft{Type: "none", Data: jsontext.Value("null")}
	return draft.Job(by.tenant, a.Limits)
}

// preview lists the next instants of a schedule.
type preview struct {
	Timezone string     `json:"timezone"`
	Crontab  string     `json:"crontab,omitzero"`
	Items    []upcoming `json:"items"`
	LeftOut  []leftOut  `json:"leftOut"`
	Passed   int        `json:"passed,omitzero"`
	Crowded  []crowded  `json:"crowded,omitempty"`
}

// upcoming is a future instant.
type upcoming struct {
	Timestamp   string `json:"timestamp"`
	FiresAt     string `json:"firesAt,omitzero"`
	Local       string `json:"local"`
	Step        *int   `json:"step,omitzero"`
	Subscribers int    `json:"subscribers,omitzero"`
	ClockChange string `json:"effect,omitzero"`
	Note        string `json:"note,omitzero"`
}

// leftOut is a wall time that does not exist, and so does not fire.
type leftOut struct {
	Local string `json:"local"`
	At    string `json:"at"`
	Note  string `json:"note"`
}

// The formats of wall times in previews: with the zone's offset; without, for a time that the zone does not have.
const (
	localLayout = "2006-01-02T15:04:05.000-07:00"
	wallLayout  = "2006-01-02T15:04:05"
)

// writePreview answers with the instants of a job from a time on.
func (a *api) writePreview(c *gin.Context, j *job.Job, from, now time.Time, count int) error {
	p, err := j.Schedule.Preview(from, count)
	if err != nil {
		return err
	}
	view := preview{
		Timezone: p.Zone.String(), Items: make([]upcoming, len(p.Upcoming)),
		LeftOut: make([]leftOut, len(p.LeftOut)), Passed: p.Passed,
	}
	if resolved := j.Schedule.Crontab.Resolved(); resolved != j.Schedule.Crontab.String() {
		view.Crontab = resolved
	}
	due := make([]time.Time, len(p.Upcoming))
	for i, u := range p.Upcoming {
		item := upcoming{
			Timestamp:   job.FormatTime(u.At),
			Local:       u.At.In(p.Zone).Format(localLayout),
			ClockChange: effectName(u.ClockChange.Kind),
			Note:        u.ClockChange.String(),
		}
		o := job.Occurrence{Name: j.Name, Timestamp: u.At}
		if u.Step >= 0 {
			item.Step, o.Part = &u.Step, &job.Part{Step: u.Step}
		}
		fires := u.At
		switch {
		case j.Schedule.Subscribers.Raw() != nil: // each is moved on its own
			item.Subscribers = u.Count
		case j.Options.Spread != 0:
			fires = j.Options.FiresAt(&o)
			item.FiresAt = job.FormatTime(fires)
		}
		due[i] = fires
		switch {
		case !fires.Before(now):
		case j.Options.Overdue(u.At, now):
			item.ClockChange, item.Note = "missed", "has passed, and so has its deadline: missed"
		case item.Subscribers > 0 && j.Options.Spread != 0:
			item.ClockChange, item.Note = "past", "has passed: each fires at its own time within the spread, or at once"
		default:
			item.ClockChange, item.Note = "past", "has passed: fires at once"
		}
		view.Items[i] = item
	}
	view.Crowded = crowdedViews(a.crowd.Look(now, due))
	for i, e := range p.LeftOut {
		view.LeftOut[i] = leftOut{Local: e.Wall.Format(wallLayout), At: job.FormatTime(e.At), Note: e.String()}
	}
	return writeJSON(c, http.StatusOK, view)
}

func effectName(kind job.ClockChangeKind) string {
	switch kind {
	case job.Moved:
		return "moved"
	case job.OnlyFirst:
		return "onlyFirst"
	case job.FirstOfTwo:
		return "firstOfTwo"
	case job.SecondOfTwo:
		return "secondOfTwo"
	default:
		return ""
	}
}
