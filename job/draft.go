package job

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Draft is a job as a client submits it, decoded but not yet checked. [Draft.Job] checks it and makes the job.
type Draft struct {
	Key         string         `json:"key,omitzero"`
	Type        *string        `json:"type,omitzero"`
	Schedules   []string       `json:"schedules,omitzero"`
	Delay       *Duration      `json:"delay,omitzero"`
	Crontab     *string        `json:"crontab,omitzero"`
	Steps       []Step         `json:"steps,omitzero"`
	Subscribers jsontext.Value `json:"subscribers,omitzero"`
	Timezone    *string        `json:"timezone,omitzero"`
	StartAt     *string        `json:"startAt,omitzero"`
	EndAt       *string        `json:"endAt,omitzero"`
	Past        *Past          `json:"past,omitzero"`
	OptionsDraft
	Callback *CallbackDraft `json:"callback,omitzero"`
}

// CallbackDraft is a submitted callback. Data is checked by the sender of its type.
type CallbackDraft struct {
	Type     string         `json:"type"`
	Data     jsontext.Value `json:"data"`
	Envelope *Envelope      `json:"envelope,omitzero"`
	Signing  *string        `json:"signing,omitzero"`
}

// Limits bound one job. The error about an exceeded limit names the option that sets it.
type Limits struct {
	Instants int // the most instants of one job, for each of its subscribers (--max-instants)
	Payload  int // the most bytes of callback data, and of all steps' metadata together (--max-payload)
}

// Decode reads a job's JSON. Syntax errors are a [*Malformed]; unknown or mistyped fields an [*Invalid].
func Decode(body []byte) (Draft, error) {
	return decode[Draft](body)
}

// Item is a job in a batch, with the condition of its submission. At most one of them is given.
type Item struct {
	Draft
	// IfMatch is the version that the present job must have, or "*" for any.
	IfMatch *string `json:"ifMatch,omitzero"`
	// IfNoneMatch is "*": there must be no job of the key.
	IfNoneMatch *string `json:"ifNoneMatch,omitzero"`
}

// DecodeItem is [Decode] for an item of a batch.
func DecodeItem(body []byte) (Item, error) {
	return decode[Item](body)
}

// Job checks the draft and makes a job of the tenant from it, without a revision; [Job.Begin] does the rest. The error
// is an [*Invalid] that names every field at fault. The callback's data is checked by its sender.
func (d Draft) Job(tenant string, limits Limits) (Job, error) {
	var invalid Invalid
	if d.Subscribers.Kind() == jsontext.KindNull {
		d.Subscribers = nil
	}
	d.Check(&invalid)
	j := Job{
		Name:     Name{Tenant: tenant, Key: d.Key},
		Schedule: d.schedule(tenant, limits, &invalid),
		Options:  d.options(),
	}
	j.Options.Payloads = d.payloads(limits, &invalid)
	if d.Callback != nil {
		j.Callback = Callback{Type: d.Callback.Type, Data: d.Callback.Data}
		if e := value(d.Callback.Envelope); e != "none" {
			j.Options.Envelope = e
		}
		j.Options.Signing = value(d.Callback.Signing)
		if n := len(d.Callback.Data); n > limits.Payload {
			invalid.Add("/callback/data", fmt.Sprintf("is %d bytes; at most %d are allowed (--max-payload)", n, limits.Payload))
		}
	}
	if r := j.Options.Retry; r.Max != 0 && r.Max < r.WithDefaults().Initial {
		invalid.Add("/retry/max", fmt.Sprintf("must not be shorter than initial, which is %s", r.WithDefaults().Initial))
	}
	if o := j.Options; o.Deadline != 0 && o.Spread != 0 && o.Deadline <= o.Spread {
		invalid.Add("/deadline", fmt.Sprintf("must be longer than spread, which is %s: it runs from the instant that is "+
			"moved by up to so much", o.Spread))
	}
	if o := j.Options; o.ExpectBy != 0 && o.ExpectBy <= o.Spread {
		invalid.Add("/expectBy", fmt.Sprintf("must be longer than spread, which is %s: it runs from the instant that is "+
			"moved by up to so much", o.Spread))
	}
	if err := invalid.Err(); err != nil {
		return Job{}, err
	}
	return j, nil
}

// NeedsKey returns the field whose times follow from the key, so that a draft without a key can't be previewed; empty
// if there is none.
func (d *Draft) NeedsKey() string {
	switch {
	case HasHash(value(d.Crontab)):
		return "crontab"
	case d.Spread != nil:
		return "spread"
	default:
		return ""
	}
}

// PastOrDefault returns the treatment of instants that have passed; [PastDefault] if the draft has none.
func (d *Draft) PastOrDefault() Past { return value(d.Past) }

// schedule reads the fields of the schedule, and notes their errors.
func (d *Draft) schedule(tenant string, limits Limits, invalid *Invalid) Schedule {
	var s Schedule
	d.checkKind(invalid)
	s.Instants = instants(d.Schedules)
	if n := len(s.Instants); n > limits.Instants {
		invalid.Add("/schedules", fmt.Sprintf("has %d instants; at most %d are allowed (--max-instants)", n, limits.Instants))
	}
	if d.Schedules != nil && len(d.Schedules) == 0 {
		invalid.Add("/schedules", "must not be empty")
	}
	s.Delay = d.Delay
	if d.Timezone != nil {
		s.Zone = *d.Timezone
		if _, err := LoadZone(s.Zone); err != nil {
			invalid.Add("/timezone", err.Error())
		}
	}
	s.StartAt, s.EndAt = instant(d.StartAt), instant(d.EndAt)
	if !s.EndAt.IsZero() && s.EndAt.Before(s.StartAt) {
		invalid.Add("/endAt", "must not lie before startAt")
	}
	d.crontab(tenant, &s, invalid)
	d.sequence(&s, limits, invalid)
	return s
}

// checkKind checks that the schedule is of exactly one kind, and has no fields of another kind.
func (d *Draft) checkKind(invalid *Invalid) {
	var kinds []string
	for _, k := range []struct {
		name  string
		given bool
	}{
		{"schedules", d.Schedules != nil}, {"delay", d.Delay != nil},
		{"crontab", d.Crontab != nil}, {"steps", d.Steps != nil},
	} {
		if k.given {
			kinds = append(kinds, k.name)
		}
	}
	switch {
	case len(kinds) == 0 && value(d.Type) == "sequence":
		invalid.Add("/steps", "is required, as type is sequence")
		return
	case len(kinds) == 0:
		invalid.Add("/schedules", "is required, unless delay, crontab or steps is given instead")
		return
	}
	for _, name := range kinds[1:] {
		invalid.Add("/"+name, fmt.Sprintf("must not be given beside %s: "+
			"a job has exactly one of schedules, delay, crontab and steps", kinds[0]))
	}
	kind := kinds[0]
	for _, f := range []struct {
		name  string
		given bool
		of    []string
		why   string
	}{
		{"type", d.Type != nil, []string{"steps"}, "steps"},
		{"subscribers", d.Subscribers != nil, []string{"steps"}, "steps"},
		{"timezone", d.Timezone != nil, []string{"crontab", "steps"},
			"a crontab or steps; instants have an offset of their own"},
		{"startAt", d.StartAt != nil, []string{"crontab", "steps"}, "a crontab or steps"},
		{"endAt", d.EndAt != nil, []string{"crontab"}, "a crontab"},
		{"catchUp", d.CatchUp != nil, []string{"crontab"}, "a crontab; deadline says until when others may fire late"},
	} {
		if f.given && !slices.Contains(f.of, kind) {
			invalid.Add("/"+f.name, "belongs to "+f.why)
		}
	}
}

// crontab reads the crontab. An "@at" becomes an instant.
func (d *Draft) crontab(tenant string, s *Schedule, invalid *Invalid) {
	if d.Crontab == nil {
		return
	}
	var err error
	if s.Crontab, err = CrontabOf(Name{tenant, d.Key}, *d.Crontab); err != nil {
		invalid.Add("/crontab", err.Error())
		return
	}
	if s.Recurs() {
		if d.Past != nil {
			invalid.Add("/past",
				"does not apply to a crontab, none of whose instants is past when it is submitted; leave it out")
		}
		return
	}
	at := time.Unix(s.Crontab.at, 0).UTC()
	switch {
	case at.Before(s.StartAt):
		invalid.Add("/startAt", "lies after the crontab's one instant, so it never fires")
	case !s.EndAt.IsZero() && at.After(s.EndAt):
		invalid.Add("/endAt", "lies before the crontab's one instant, so it never fires")
	case d.CatchUp != nil:
		invalid.Add("/catchUp", "belongs to a crontab that recurs; deadline says until when others may fire late")
	}
	s.Instants = []time.Time{at}
}

// sequence reads the steps and their subscribers.
func (d *Draft) sequence(s *Schedule, limits Limits, invalid *Invalid) {
	if d.Steps == nil {
		return
	}
	for i := range d.Steps {
		d.Steps[i].check(Pointer("steps", i), invalid)
	}
	n := jobSteps(d.Steps)
	if n == 0 {
		invalid.Add("/steps", `must have at least one step of type "job": without one nothing fires`)
	}
	subscribers, err := parseSubscribers(d.Subscribers)
	if wrong, ok := errors.AsType[*Invalid](err); ok {
		for _, f := range wrong.Under("/subscribers").Fields {
			invalid.Add(f.Pointer, f.Message)
		}
	} else if err != nil {
		invalid.Add("/subscribers", err.Error())
	}
	switch each := subscribers.Len(); {
	case each <= limits.Instants/max(n, 1): // the product could overflow
	case each == 1:
		invalid.Add("/steps", fmt.Sprintf("has %d job steps; at most %d are allowed (--max-instants)", n, limits.Instants))
	default:
		invalid.Add("/subscribers", fmt.Sprintf("names %d subscribers, for %d job steps; "+
			"at most %d instants are allowed, counted for each subscriber (--max-instants)",
			each, n, limits.Instants))
	}
	s.Steps, s.Subscribers = d.Steps, subscribers
}

// payloads returns the payloads of steps that replace the callback's payload, by step.
func (d *Draft) payloads(limits Limits, invalid *Invalid) map[int]jsontext.Value {
	var payloads map[int]jsontext.Value
	total := 0
	for i := range d.Steps {
		if m := d.Steps[i].Metadata; m != nil {
			if payloads == nil {
				payloads = make(map[int]jsontext.Value)
			}
			payloads[i] = m
			total += len(m)
		}
	}
	if total > limits.Payload {
		invalid.Add("/steps",
			fmt.Sprintf("have %d bytes of metadata; at most %d are allowed (--max-payload)", total, limits.Payload))
	}
	return payloads
}

// Draft returns the job as its client could submit it again, without past. Fields that the client left out are left
// out.
func (j *Job) Draft() Draft {
	s := &j.Schedule
	d := Draft{
		Key:          j.Key,
		Steps:        s.Steps,
		Subscribers:  s.Subscribers.Raw(),
		Timezone:     given(s.Zone),
		StartAt:      given(instantText(s.StartAt)),
		EndAt:        given(instantText(s.EndAt)),
		OptionsDraft: j.Options.draft(),
		Callback: &CallbackDraft{
			Type: j.Callback.Type, Data: j.Callback.Data, Envelope: given(j.Options.Envelope), Signing: given(j.Options.Signing),
		},
	}
	switch {
	case s.Steps != nil:
	case s.Crontab != (Crontab{}):
		d.Crontab = given(s.Crontab.String())
	case s.Delay != nil:
		d.Delay = s.Delay
	default:
		d.Schedules = make([]string, len(s.Instants))
		for i, at := range s.Instants {
			d.Schedules[i] = FormatTime(at)
		}
	}
	return d
}

// instants parses checked schedules, in order and without duplicates.
func instants(schedules []string) []time.Time {
	all := make([]time.Time, 0, len(schedules))
	for _, s := range schedules {
		if at, err := ParseInstant(s); err == nil {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return slices.CompactFunc(all, time.Time.Equal)
}

// instant reads a checked instant; zero if s is nil.
func instant(s *string) time.Time {
	if s == nil {
		return time.Time{}
	}
	at, _ := ParseInstant(*s) // the error was noted by the check
	return at
}

func instantText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return FormatTime(t)
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// given returns a field of a draft: nil for the zero value.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
