package transfer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/checkins"
)

// tenantLine is a tenant. Its settings are as stores keep them.
type tenantLine struct {
	Name      string             `json:"name"`
	FirstSeen moment             `json:"firstSeen"`
	Settings  job.TenantSettings `json:"settings,omitzero"`
}

func newTenantLine(t job.Tenant) *tenantLine {
	return &tenantLine{Name: t.Name, FirstSeen: moment(t.FirstSeen), Settings: t.Settings}
}

// tenant decodes a tenant. The error names the invalid field.
func (l *tenantLine) tenant() (job.Tenant, error) {
	switch s := l.Settings; {
	case !job.ValidTenant(l.Name):
		return job.Tenant{}, fmt.Errorf("no tenant can have the name %q", l.Name)
	case l.FirstSeen.IsZero():
		return job.Tenant{}, errors.New("firstSeen is required")
	case s.Weight < 0 || s.MaxInFlight < 0:
		return job.Tenant{}, errors.New("weight and maxInFlight must not be negative")
	case !s.Priority.Valid():
		return job.Tenant{}, errors.New("priority must be high, normal or low")
	case s.Events != nil && s.Events.Callback == nil:
		return job.Tenant{}, errors.New("events/callback is required with events")
	}
	return job.Tenant{Name: l.Name, FirstSeen: time.Time(l.FirstSeen), Settings: l.Settings}, nil
}

// checkInLine is a check-in of a job that expects it.
type checkInLine struct {
	Tenant    string `json:"tenant"`
	Key       string `json:"key"`
	At        moment `json:"at"`
	ExpiresAt moment `json:"expiresAt"`
}

func newCheckInLine(c checkins.CheckIn) *checkInLine {
	return &checkInLine{Tenant: c.Name.Tenant, Key: c.Name.Key, At: moment(c.At), ExpiresAt: moment(c.ExpiresAt)}
}

// checkIn decodes a check-in. The error names the invalid field.
func (l *checkInLine) checkIn() (c checkins.CheckIn, err error) {
	if l.At.IsZero() || l.ExpiresAt.IsZero() {
		return c, errors.New("at and expiresAt are required")
	}
	c = checkins.CheckIn{
		Name: job.Name{Tenant: l.Tenant, Key: l.Key}, At: time.Time(l.At), ExpiresAt: time.Time(l.ExpiresAt),
	}
	return c, checkName(c.Name)
}

// jobLine is a job. Its options and schedule are as stores keep them.
type jobLine struct {
	Tenant    string         `json:"tenant"`
	Key       string         `json:"key"`
	Revision  job.Revision   `json:"revision"`
	Version   job.Revision   `json:"version"`
	Callback  callbackLine   `json:"callback"`
	Options   jsontext.Value `json:"options,omitzero"`
	Schedule  jsontext.Value `json:"schedule"`
	CreatedAt moment         `json:"createdAt"`
	UpdatedAt moment         `json:"updatedAt"`
	ExpiresAt moment         `json:"expiresAt"`
	PausedAt  moment         `json:"pausedAt,omitzero"`
	Cursor    moment         `json:"cursor,omitzero"`
	ExpandAt  moment         `json:"expandAt,omitzero"`
	Planned   int            `json:"planned,omitzero"`
	Missed    int            `json:"missed,omitzero"`
	Failed    int            `json:"failed,omitzero"`
	Trouble   string         `json:"trouble,omitzero"` // as stores keep it
}

func newJobLine(j *job.Job) *jobLine {
	return &jobLine{
		Tenant:    j.Tenant,
		Key:       j.Key,
		Revision:  j.Revision,
		Version:   j.Version,
		Callback:  newCallbackLine(j.Callback),
		Options:   j.Options.Encode(),
		Schedule:  j.Schedule.Encode(),
		CreatedAt: moment(j.CreatedAt),
		UpdatedAt: moment(j.UpdatedAt),
		ExpiresAt: moment(j.ExpiresAt),
		PausedAt:  moment(j.PausedAt),
		Cursor:    moment(j.Cursor),
		ExpandAt:  moment(j.ExpandAt),
		Planned:   j.Planned,
		Missed:    j.Missed,
		Failed:    j.Failed,
		Trouble:   j.Trouble.Encode(),
	}
}

// job decodes a job. The error names the invalid field.
func (l *jobLine) job() (*job.Job, error) {
	switch {
	case l.Revision == "" || l.Version == "":
		return nil, errors.New("revision and version are required")
	case l.CreatedAt.IsZero() || l.UpdatedAt.IsZero() || l.ExpiresAt.IsZero():
		return nil, errors.New("createdAt, updatedAt and expiresAt are required")
	case l.Schedule == nil:
		return nil, errors.New("schedule is required")
	case l.Planned < 0 || l.Missed < 0 || l.Failed < 0:
		return nil, errors.New("planned, missed and failed must not be negative")
	}
	j := &job.Job{
		Name:      job.Name{Tenant: l.Tenant, Key: l.Key},
		Revision:  l.Revision,
		Version:   l.Version,
		CreatedAt: time.Time(l.CreatedAt),
		UpdatedAt: time.Time(l.UpdatedAt),
		ExpiresAt: time.Time(l.ExpiresAt),
		PausedAt:  time.Time(l.PausedAt),
		Cursor:    time.Time(l.Cursor),
		ExpandAt:  time.Time(l.ExpandAt),
		Planned:   l.Planned,
		Missed:    l.Missed,
		Failed:    l.Failed,
	}
	target, targetErr := l.Callback.target(l.Options)
	if err := errors.Join(checkName(j.Name), object("schedule", l.Schedule), targetErr); err != nil {
		return nil, err
	}
	j.Callback, j.Options = target.Callback, target.Options
	var err, troubleErr error
	j.Schedule, err = job.DecodeSchedule(l.Schedule)
	j.Trouble, troubleErr = job.DecodeTrouble(l.Trouble)
	return j, errors.Join(err, troubleErr)
}

// occurrenceLine is a pending occurrence or, if it has failedAt, a dead letter. A standalone occurrence has a callback;
// the others have a revision.
type occurrenceLine struct {
	ID          string         `json:"id"`
	Tenant      string         `json:"tenant"`
	Key         string         `json:"key"`
	Revision    job.Revision   `json:"revision,omitzero"`
	Priority    job.Priority   `json:"priority,omitzero"`
	Position    int            `json:"position,omitzero"`
	Step        *int           `json:"step,omitzero"`
	Subscriber  string         `json:"subscriber,omitzero"`
	Timestamp   moment         `json:"timestamp"`
	DueAt       moment         `json:"dueAt,omitzero"`
	ScheduledAt moment         `json:"scheduledAt,omitzero"`
	Token       string         `json:"token,omitzero"`
	Attempt     int            `json:"attempt,omitzero"`
	LastError   string         `json:"lastError,omitzero"`
	FailedAt    moment         `json:"failedAt,omitzero"`
	Callback    *callbackLine  `json:"callback,omitzero"`
	Options     jsontext.Value `json:"options,omitzero"`
}

func newOccurrenceLine(o *job.Occurrence) *occurrenceLine {
	l := &occurrenceLine{
		ID:          o.ID.String(),
		Tenant:      o.Name.Tenant,
		Key:         o.Name.Key,
		Revision:    o.Revision,
		Priority:    o.Priority,
		Position:    o.Position,
		Timestamp:   moment(o.Timestamp),
		DueAt:       moment(o.DueAt),
		ScheduledAt: moment(o.ScheduledAt),
		Token:       o.Token,
		Attempt:     o.Attempt,
		LastError:   strings.ToValidUTF8(o.LastError, "\ufffd"), // the text is only for people
		FailedAt:    moment(o.FailedAt),
	}
	if o.Part != nil {
		l.Step, l.Subscriber = &o.Part.Step, o.Part.Subscriber
	}
	if o.Own != nil {
		callback := newCallbackLine(o.Own.Callback)
		l.Callback, l.Options = &callback, o.Own.Options.Encode()
	}
	return l
}

// occurrence decodes an occurrence. The error names the invalid field.
func (l *occurrenceLine) occurrence() (*job.Occurrence, error) {
	switch {
	case l.Timestamp.IsZero():
		return nil, errors.New("timestamp is required")
	case l.DueAt.IsZero() == l.FailedAt.IsZero():
		return nil, errors.New("either dueAt or, of a dead letter, failedAt is required")
	case (l.Callback == nil) == (l.Revision == ""):
		return nil, errors.New("either revision or callback is required")
	case l.Callback == nil && (l.Options != nil || !l.FailedAt.IsZero()):
		return nil, errors.New("callback is required with failedAt and options")
	case l.Step == nil && l.Subscriber != "":
		return nil, errors.New("step is required with subscriber")
	case !l.Priority.Valid():
		return nil, errors.New("priority must be high, normal or low")
	case l.Position < 0 || l.Attempt < 0 || l.Step != nil && *l.Step < 0:
		return nil, errors.New("position, attempt and step must not be negative")
	}
	o := &job.Occurrence{
		Name:        job.Name{Tenant: l.Tenant, Key: l.Key},
		Revision:    l.Revision,
		Priority:    l.Priority,
		Position:    l.Position,
		Timestamp:   time.Time(l.Timestamp),
		DueAt:       time.Time(l.DueAt),
		ScheduledAt: time.Time(l.ScheduledAt),
		Token:       l.Token,
		Attempt:     l.Attempt,
		LastError:   l.LastError,
		FailedAt:    time.Time(l.FailedAt),
	}
	if l.Step != nil {
		o.Part = &job.Part{Step: *l.Step, Subscriber: l.Subscriber}
	}
	var idErr, ownErr error
	o.ID, idErr = job.ParseID(l.ID)
	if l.Callback != nil {
		o.Own, ownErr = l.Callback.target(l.Options)
	}
	return o, errors.Join(checkName(o.Name), checkText("subscriber", l.Subscriber), idErr, ownErr)
}

// callbackLine is a callback. Its data are a string, which preserves their bytes; a JSON value would be reformatted.
// Data that are not valid UTF-8 are base64.
type callbackLine struct {
	Type   string  `json:"type"`
	Data   *string `json:"data,omitzero"`
	Base64 []byte  `json:"base64,omitzero"`
}

func newCallbackLine(c job.Callback) callbackLine {
	l := callbackLine{Type: c.Type}
	if utf8.Valid(c.Data) {
		text := string(c.Data)
		l.Data = &text
	} else {
		l.Base64 = c.Data
	}
	return l
}

// target decodes an occurrence's own callback and options. The error names the invalid field.
func (l *callbackLine) target(options jsontext.Value) (*job.Target, error) {
	switch {
	case l.Type == "":
		return nil, errors.New("callback/type is required")
	case (l.Data == nil) == (l.Base64 == nil):
		return nil, errors.New("either callback/data or callback/base64 is required")
	}
	if err := object("options", options); err != nil {
		return nil, err
	}
	t := &job.Target{Callback: job.Callback{Type: l.Type, Data: l.Base64}}
	if l.Data != nil {
		t.Callback.Data = []byte(*l.Data)
	}
	var err error
	t.Options, err = job.DecodeOptions(options)
	return t, err
}

func checkName(n job.Name) error {
	if n.Tenant == "" || n.Key == "" {
		return errors.New("tenant and key are required")
	}
	return errors.Join(checkText("tenant", n.Tenant), checkText("key", n.Key))
}

// checkText refuses control characters, which stores use as separators in their keys.
func checkText(field, s string) error {
	if strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return fmt.Errorf("%s must have no control characters", field)
	}
	return nil
}
