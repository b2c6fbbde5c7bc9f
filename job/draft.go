package job

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Draft is a job as a client submits it, decoded but not yet checked. [Draft.Job] checks it and makes the job.
type Draft struct {
	Key       string         `json:"key" validate:"required,key"`
	Schedules []string       `json:"schedules" validate:"required,min=1,dive,instant"`
	Past      Past           `json:"past" validate:"omitempty,oneof=fire skip reject"`
	Callback  *CallbackDraft `json:"callback" validate:"required"`
	Retry     *RetryDraft    `json:"retry"`
}

// CallbackDraft is a submitted callback. Data is checked by the sender of its type.
type CallbackDraft struct {
	Type string         `json:"type" validate:"required"`
	Data jsontext.Value `json:"data" validate:"required"`
}

// RetryDraft is a submitted retry policy; what it leaves out is taken from [DefaultRetry].
type RetryDraft struct {
	MaxAttempts *int      `json:"maxAttempts" validate:"omitempty,min=1,max=1000"`
	Initial     *Duration `json:"initial" validate:"omitempty,between=1ms 30d"`
	Factor      *float64  `json:"factor" validate:"omitempty,min=1,max=100"`
	Max         *Duration `json:"max" validate:"omitempty,between=1ms 30d"`
}

// Limits bound what one job may ask for. A client that exceeds one is told the option that sets it.
type Limits struct {
	Instants int // instants of one job (--max-instants)
	Payload  int // bytes of callback data (--max-payload)
}

// Decode reads a job's JSON. Syntax errors are a [*Malformed]; unknown or mistyped fields an [*Invalid].
func Decode(body []byte) (Draft, error) {
	return decode[Draft](body)
}

// Job checks the draft and makes it a job of the tenant, without a revision. The error is an [*Invalid] that names every
// field at fault. What the callback's data must hold is left to its sender.
func (d Draft) Job(tenant string, limits Limits) (Job, error) {
	if err := check(d); err != nil {
		return Job{}, err
	}
	var invalid Invalid
	schedule := instants(d.Schedules)
	if n := len(schedule); n > limits.Instants {
		invalid.Add("/schedules", fmt.Sprintf("has %d instants; at most %d are allowed (--max-instants)", n, limits.Instants))
	}
	if n := len(d.Callback.Data); n > limits.Payload {
		invalid.Add("/callback/data", fmt.Sprintf("is %d bytes; at most %d are allowed (--max-payload)", n, limits.Payload))
	}
	options := Options{Retry: d.Retry.retry()}
	if r := options.Retry; r.Max != 0 && r.Max < r.WithDefaults().Initial {
		invalid.Add("/retry/max", fmt.Sprintf("must not be shorter than initial, which is %s", r.WithDefaults().Initial))
	}
	if err := invalid.Err(); err != nil {
		return Job{}, err
	}
	return Job{
		Name:     Name{Tenant: tenant, Key: d.Key},
		Callback: Callback{Type: d.Callback.Type, Data: d.Callback.Data},
		Options:  options,
		Schedule: Schedule{Instants: schedule},
	}, nil
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

func (d *RetryDraft) retry() Retry {
	if d == nil {
		return Retry{}
	}
	return Retry{
		MaxAttempts: value(d.MaxAttempts),
		Initial:     value(d.Initial),
		Factor:      value(d.Factor),
		Max:         value(d.Max),
	}
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
