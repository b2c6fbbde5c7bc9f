package job

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Options are the parts of a definition that matter when an occurrence fires. Those that a client sets at the top level
// of a submission are fields of [OptionsDraft] too.
type Options struct {
	// Envelope is the form in which the callback delivers payloads.
	Envelope Envelope `json:"envelope,omitzero"`
	// Signing is the name of the secret that signs the callback, or [NoSigning]; empty for the tenant's default, if it
	// has one.
	Signing string `json:"signing,omitzero"`
	Retry   Retry  `json:"retry,omitzero"`
	// Priority decides which lane the occurrences wait in.
	Priority Priority `json:"priority,omitzero"`
	// Destination limits the callback's destination, whatever other jobs send there.
	Destination DestinationLimits `json:"destination,omitzero"`
	// Deadline is how long after its instant an occurrence may still be attempted; zero for ever.
	Deadline Duration `json:"deadline,omitzero"`
	CatchUp  CatchUp  `json:"catchUp,omitzero"`
	// Recurrence is set if the schedule recurs.
	Recurrence *Recurrence `json:"recurrence,omitzero"`
	// Payloads are delivered by the steps of a sequence instead of the callback's payload, by the index of the step.
	Payloads map[int]jsontext.Value `json:"payloads,omitempty"`
	// Trace is that of the request which made the definition. Definitions that differ only in it are the same, see
	// [Options.Same].
	Trace Trace `json:"trace,omitzero"`
}

// OptionsDraft are options as a client submits them: nil if they are left out. A field is copied to and from the field
// of [Options] that has its name, and checked by its validate tag, so an option is a field there and one here.
type OptionsDraft struct {
	Deadline    *Duration         `json:"deadline,omitzero" validate:"omitnil,within=1ms 5200w"`
	CatchUp     *CatchUp          `json:"catchUp,omitzero" validate:"omitnil,oneof=latest all none"`
	Priority    *Priority         `json:"priority,omitzero" validate:"omitnil,oneof=high normal low"`
	Destination *DestinationDraft `json:"destination,omitzero"`
	Retry       *RetryDraft       `json:"retry,omitzero"`
}

// DestinationLimits bound the callbacks that one replica sends to a destination. Zero does not.
type DestinationLimits struct {
	// MaxInFlight is how many callbacks to it may be under way when one of this job begins, that one included.
	MaxInFlight int `json:"maxInFlight,omitzero"`
	// RatePerSecond is how many of this job and others with the same rate may begin in a second.
	RatePerSecond float64 `json:"ratePerSecond,omitzero"`
}

// DestinationDraft are submitted [DestinationLimits].
type DestinationDraft struct {
	MaxInFlight   *int     `json:"maxInFlight,omitzero" validate:"omitnil,min=1,max=10000"`
	RatePerSecond *float64 `json:"ratePerSecond,omitzero" validate:"omitnil,min=0.001,max=100000"`
}

// RetryDraft is a submitted [Retry]; what it leaves out is taken from [DefaultRetry].
type RetryDraft struct {
	MaxAttempts *int      `json:"maxAttempts,omitzero" validate:"omitnil,min=1,max=1000"`
	Initial     *Duration `json:"initial,omitzero" validate:"omitnil,within=1ms 30d"`
	Factor      *float64  `json:"factor,omitzero" validate:"omitnil,min=1,max=100"`
	Max         *Duration `json:"max,omitzero" validate:"omitnil,within=1ms 30d"`
}

// options are the options that were submitted. Most submissions have none.
func (d *OptionsDraft) options() (o Options) {
	if *d != (OptionsDraft{}) {
		fromDraft(reflect.ValueOf(&o).Elem(), reflect.ValueOf(d).Elem())
	}
	return o
}

// fromDraft copies the given fields of a draft to the fields of those names. A draft of a struct is copied likewise.
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

// draft is the options as they could be submitted again.
func (o *Options) draft() (d OptionsDraft) {
	toDraft(reflect.ValueOf(&d).Elem(), reflect.ValueOf(o).Elem())
	return d
}

// toDraft is the inverse of fromDraft. A zero field stands for one that was left out.
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

// Alone are the options of an occurrence that stands on its own: one that was triggered, or is kept as a dead letter.
// An operator or a client wants it to fire, so it heeds neither deadline nor catch-up. Of the payloads it takes that of
// its own part, which may be nil.
func (o Options) Alone(part *Part) Options {
	var own map[int]jsontext.Value
	if part != nil && o.Payloads[part.Step] != nil {
		own = map[int]jsontext.Value{part.Step: o.Payloads[part.Step]}
	}
	o.Deadline, o.CatchUp, o.Recurrence, o.Payloads = 0, "", nil, own
	return o
}

// Same reports whether two options ask for the same, whichever requests they came with.
func (o Options) Same(other Options) bool {
	o.Trace, other.Trace = "", ""
	return bytes.Equal(o.Encode(), other.Encode())
}

// Encode returns the options as stores keep them: compact JSON, or nothing if all are left at their defaults.
func (o Options) Encode() []byte {
	if reflect.ValueOf(&o).Elem().IsZero() {
		return nil
	}
	return mustEncode(o)
}

// DecodeOptions reads what [Options.Encode] wrote.
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
