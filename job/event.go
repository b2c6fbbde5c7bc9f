package job

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ReservedPrefix begins the keys of the jobs that the service itself makes. Clients can read and cancel these jobs, but
// not submit them, and lists leave them out unless they are asked for by a prefix.
const ReservedPrefix = "$carillon:"

// Reserved reports whether a key, or the beginning of one, is reserved for the service's own jobs.
func Reserved(key string) bool { return strings.HasPrefix(key, ReservedPrefix) }

// EventType is the type of an event, as its CloudEvent has it.
type EventType string

// The types of events.
const (
	EventDeadLetter        EventType = "carillon.deadletter.created"
	EventMissed            EventType = "carillon.occurrence.missed"
	EventDestinationDown   EventType = "carillon.destination.down"
	EventDestinationUp     EventType = "carillon.destination.up"
	EventFinished          EventType = "carillon.job.finished"
	EventFailing           EventType = "carillon.job.failing"
	EventQuotaNear         EventType = "carillon.quota.near"
	EventExpectationMissed EventType = "carillon.expectation.missed"
	// EventSummary counts the events beyond the number per minute. Every tenant with events gets it.
	EventSummary EventType = "carillon.events.summary"
)

// EventTypes returns the types that a tenant can choose from.
func EventTypes() []EventType {
	return []EventType{
		EventDeadLetter, EventMissed, EventDestinationDown, EventDestinationUp, EventFinished, EventFailing,
		EventQuotaNear, EventExpectationMissed,
	}
}

// Event is an event of the service that a job delivers.
type Event struct {
	Type EventType `json:"type"`
	// Subject is the event's subject, such as a job's key; empty if that is the tenant.
	Subject string         `json:"subject,omitzero"`
	Data    jsontext.Value `json:"data,omitzero"`
}

// EventSettings say which events of a tenant are delivered, and to whom.
type EventSettings struct {
	Callback *CallbackDraft `json:"callback"`
	// Types are the wanted types; none means all.
	Types []EventType `json:"types,omitempty"`
	// PerMinute is the largest number of events per minute, besides a summary of the others; nil means the default.
	PerMinute *int `json:"perMinute,omitzero" validate:"omitnil,min=1,max=6000"`
}

// The default and the bound of events' settings.
const (
	defaultEventsPerMinute = 60
	maxEventCallback       = 32 << 10 // bytes; all settings of a tenant are one record
)

// check notes the faults of submitted settings. The data of the callback are checked by its sender.
func (s *EventSettings) check(invalid *Invalid) {
	var faults Invalid
	s.Callback.checkFields(&faults)
	if c := s.Callback; c != nil && value(c.Envelope) == "none" {
		faults.Add("/callback/envelope", "must be cloudevents or cloudevents-binary, or be left out: "+
			"receivers tell events apart by their type")
	}
	if c := s.Callback; c != nil && len(c.Data) > maxEventCallback {
		faults.Add("/callback/data", "must be at most 32 KiB")
	}
	if s.Types != nil && len(s.Types) == 0 {
		faults.Add("/types", "must have a type, or be left out: then all are delivered")
	}
	for i, t := range s.Types {
		if !slices.Contains(EventTypes(), t) {
			faults.Add(Pointer("types", i), "must be one of "+strings.Join(names(EventTypes()), ", "))
		}
	}
	for _, f := range faults.Under("/events").Fields {
		invalid.Add(f.Pointer, f.Message)
	}
}

func names[T ~string](all []T) []string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = string(one)
	}
	return texts
}

// Want reports whether events of a type are to be delivered. It is false for nil settings.
func (s *EventSettings) Want(t EventType) bool {
	return s != nil && (len(s.Types) == 0 || t == EventSummary || slices.Contains(s.Types, t))
}

// MostPerMinute returns the largest number of events per minute.
func (s *EventSettings) MostPerMinute() int {
	if s.PerMinute == nil {
		return defaultEventsPerMinute
	}
	return *s.PerMinute
}

// Target returns the callback of events, which is in an envelope always.
func (s *EventSettings) Target() Target {
	t := Target{Callback: Callback{Type: s.Callback.Type, Data: s.Callback.Data}}
	t.Options.Envelope = EnvelopeStructured
	if s.Callback.Envelope != nil {
		t.Options.Envelope = *s.Callback.Envelope
	}
	t.Options.Signing = value(s.Callback.Signing)
	return t
}
