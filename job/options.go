package job

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Options are the parts of a definition that matter when an occurrence fires. Options that a client sets at the top
// level of a submission are fields of [OptionsDraft] too.
type Options struct {
	// Envelope is the form in which the callback delivers payloads.
	Envelope Envelope `json:"envelope,omitzero"`
	// Signing is the name of the secret that signs the callback, or [NoSigning]; empty for the tenant's default, if it
	// has one.
	Signing string `json:"signing,omitzero"`
	Retry   Retry  `json:"retry,omitzero"`
	// Priority decides which lane the occurrences wait in.
	Priority Priority `json:"priority,omitzero"`
	// Destination has limits for the callback's destination, besides those of other jobs.
	Destination DestinationLimits `json:"destination,omitzero"`
	// Deadline is the time after its instant within which an occurrence may be attempted; zero for ever.
	Deadline Duration `json:"deadline,omitzero"`
	// Spread is the window after an instant in which its occurrence fires, see [Options.FiresAt]; zero for none.
	Spread Duration `json:"spread,omitzero"`
	// After is the time after its instant at which an occurrence fires, before it is moved by Spread. Clients can't set
	// it: a job that watches another one has it.
	After   Duration `json:"after,omitzero"`
	CatchUp CatchUp  `json:"catchUp,omitzero"`
	// ExpectBy is the time after each instant within which a check-in is expected; zero for none.
	ExpectBy Duration `json:"expectBy,omitzero"`
	// Event is set if the job delivers an event of the service.
	Event *Event `json:"event,omitzero"`
	// Recurrence is set if the schedule recurs.
	Recurrence *Recurrence `json:"recurrence,omitzero"`
	// Payloads are the payloads of a sequence's steps that replace the callback's payload, by the index of the step.
	Payloads map[int]jsontext.Value `json:"payloads,omitempty"`
	// Trace is that of the request that made the definition. [Options.Same] ignores it.
	Trace Trace `json:"trace,omitzero"`
}

// OptionsDraft are options as a client submits them: nil if they are left out. A field is copied to and from the field
// of the same name in [Options], and checked by its validate tag. So a new option is one field there and one here.
type OptionsDraft struct {
	Deadline    *Duration         `json:"deadline,omitzero" validate:"omitnil,within=1ms 5200w"`
	Spread      *Duration         `json:"spread,omitzero" validate:"omitnil,within=1ms 24h"`
	CatchUp     *CatchUp          `json:"catchUp,omitzero" validate:"omitnil,oneof=latest all none"`
	ExpectBy    *Duration         `json:"expectBy,omitzero" validate:"omitnil,within=1s 30d"`
	Priority    *Priority         `json:"priority,omitzero" validate:"omitnil,oneof=high normal low"`
	Destination *DestinationDraft `json:"destination,omitzero"`
	Retry       *RetryDraft       `json:"retry,omitzero"`
}

// DestinationLimits bound the callbacks that one replica sends to a destination. Zero is no limit.
type DestinationLimits struct {
	// MaxInFlight is the largest number of callbacks under way to it when one of this job begins, including the new one.
	MaxInFlight int `json:"maxInFlight,omitzero"`
	// RatePerSecond is the largest number of callbacks, of this job and others with the same rate, that begin in a
	// second.
	RatePerSecond float64 `json:"ratePerSecond,omitzero"`
}

// DestinationDraft are submitted [DestinationLimits].
type DestinationDraft struct {
	MaxInFlight   *int     `json:"maxInFlight,omitzero" validate:"omitnil,min=1,max=10000"`
	RatePerSecond *float64 `json:"ratePerSecond,omitzero" validate:"omitnil,min=0.001,max=100000"`
}

// RetryDraft is a submitted [Retry]; fields that it leaves out are those of [DefaultRetry].
type RetryDraft struct {
	MaxAttempts *int      `json:"maxAttempts,omitzero" validate:"omitnil,min=1,max=1000"`
	Initial     *Duration `json:"initial,omitzero" validate:"omitnil,within=1ms 30d"`
	Factor      *float64  `json:"factor,omitzero" validate:"omitnil,min=1,max=100"`
	Max         *Duration `json:"max,omitzero" validate:"omitnil,within=1ms 30d"`
}

// options returns the submitted options. Most submissions have none.
func (d *OptionsDraft) options() (o Options) {
	if *d != (OptionsDraft{}) {
		fromDraft(reflect.ValueOf(&o).Elem(), reflect.ValueOf(d).Elem())
	}
	return o
}

// fromDraft copies the given fields of a draft to the fields of the same names, recursively.
func fromDraft(to, draft reflect.Value) {
	for field, given := range draft.Fields() {
		if given.IsNil() {
			continue
		}
		if option := to.FieldByName(field.Name); option.Type() == given.Type().Elem() {
			option.Set(given.Elem())
		} else {
			fromDraft(option, given.Elem())
		}
	}
}

// draft returns the options as a client could submit them again.
func (o *Options) draft() (d OptionsDraft) {
	toDraft(reflect.ValueOf(&d).Elem(), reflect.ValueOf(o).Elem())
	return d
}

// toDraft is the inverse of fromDraft. A zero field becomes one that is left out.
func toDraft(draft, from reflect.Value) {
	for field, given := range draft.Fields() {
		option := from.FieldByName(field.Name)
		if option.IsZero() {
			continue
		}
		given.Set(reflect.New(given.Type().Elem()))
		if option.Type() == given.Type().Elem() {
			given.Elem().Set(option)
		} else {
			toDraft(given.Elem(), option)
		}
	}
}

// Alone returns the options of an occurrence that stands on its own: it was triggered, or is a dead letter. An operator
// or a client wants it to fire, so it has neither deadline, nor spread, nor catch-up, and nothing is expected after it.
// It keeps the payload of its own part, which may be nil.
func (o Options) Alone(part *Part) Options {
	var own map[int]jsontext.Value
	if part != nil && o.Payloads[part.Step] != nil {
		own = map[int]jsontext.Value{part.Step: o.Payloads[part.Step]}
	}
	o.Deadline, o.Spread, o.After, o.CatchUp, o.ExpectBy, o.Recurrence, o.Payloads = 0, 0, 0, "", 0, nil, own
	return o
}

// Same reports whether two options are equal, except for their traces.
func (o Options) Same(other Options) bool {
	o.Trace, other.Trace = "", ""
	return bytes.Equal(o.Encode(), other.Encode())
}

// Encode returns the options as stores keep them: compact JSON, or nothing if all have their defaults.
func (o Options) Encode() []byte {
	if reflect.ValueOf(&o).Elem().IsZero() {
		return nil
	}
	return mustEncode(o)
}

// DecodeOptions is the inverse of [Options.Encode].
func DecodeOptions(b []byte) (Options, error) {
	var o Options
	if len(b) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return Options{}, fmt.Errorf("decode options: %w", err)
	}
	return o, nil
}
