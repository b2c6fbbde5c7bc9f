// Package job is Carillon's domain: what a client submits, how it is checked, and how its schedule is expanded
// into occurrences. It does no I/O and reads no clock; the present time is always passed in.
package job

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
)

// DefaultTenant owns every job whose submission names no tenant.
const DefaultTenant = "default"

// Name identifies a job: keys are unique within a tenant.
type Name struct {
	Tenant string
	Key    string
}

// String is for logs: the key, after the tenant unless that is the default one.
func (n Name) String() string {
	if n.Tenant == DefaultTenant {
		return n.Key
	}
	return n.Tenant + "/" + n.Key
}

// Job is a client's standing order: when to call, what to call, and how to treat failures.
type Job struct {
	Name
	// Revision stamps the definition. A replaced or cancelled job's occurrences no longer match it.
	Revision Revision
	Callback Callback
	Options  Options
	Schedule Schedule

	CreatedAt time.Time
	UpdatedAt time.Time
	// ExpiresAt is the earliest time at which the job may be swept away once it has no occurrence left.
	ExpiresAt time.Time
}

// Callback says what to call. Data belongs to the sender of that type; its bytes are kept exactly as submitted.
type Callback struct {
	Type string
	Data []byte
}

// Options are the parts of a definition that matter when an occurrence fires.
type Options struct {
	Retry Retry `json:"retry,omitzero"`
}

// Schedule is the when of a job. Instants are UTC, whole milliseconds, ascending and distinct.
type Schedule struct {
	Instants []time.Time
}

// Occurrence is one firing of a job at one instant.
type Occurrence struct {
	ID   ID
	Name Name
	// Revision is that of the definition it belongs to. An occurrence with an empty revision stands on its own: it
	// carries its callback and options itself, and fires whatever became of its job.
	Revision Revision
	// Position tells occurrences of one job at the same instant apart.
	Position int
	// Timestamp is the instant it is meant for; it never changes.
	Timestamp time.Time
	// DueAt is when it may next be claimed: its timestamp at first, later a retry's time or a lease's end.
	DueAt time.Time
	// ScheduledAt is the time of the claim that holds it; zero when it was never claimed or was given back.
	ScheduledAt time.Time
	// Token is the fencing token of that claim; empty when there is none.
	Token string
	// Attempt counts claims, less those that were given back unfired.
	Attempt int
	// LastError is what the last attempt failed with, if any did.
	LastError string
	// FailedAt is when it was buried; zero while it is alive.
	FailedAt time.Time
	// Own is the callback and options of an occurrence that stands on its own, else nil.
	Own *Target
}

// Target is all that firing needs to know of a job.
type Target struct {
	Callback Callback
	Options  Options
}

// Held tells whether a replica holds the occurrence at now: it was claimed and its lease has not run out.
func (o Occurrence) Held(now time.Time) bool { return o.Token != "" && o.DueAt.After(now) }

// DeliveryID is the stable id that every attempt at the occurrence carries, see [DeliveryID].
func (o Occurrence) DeliveryID() ID { return DeliveryID(o.Name, o.Timestamp, o.Position) }

// Occurrences expands the job's schedule into its pending occurrences. Instants before now are treated as past says;
// skipped is how many of them were left out. With [PastReject], an instant before now is an [*Invalid].
func (j Job) Occurrences(now time.Time, past Past) (occurrences []Occurrence, skipped int, err error) {
	now = now.Truncate(time.Millisecond)
	var invalid Invalid
	occurrences = make([]Occurrence, 0, len(j.Schedule.Instants))
	for _, at := range j.Schedule.Instants {
		if at.Before(now) {
			switch past {
			case PastSkip:
				skipped++
				continue
			case PastReject:
				invalid.Add("/schedules", fmt.Sprintf("%s is in the past; give later instants, or set past to \"fire\" or \"skip\"", FormatTime(at)))
				continue
			default: // fire
			}
		}
		occurrences = append(occurrences, Occurrence{
			ID:        OccurrenceID(j.Name, j.Revision, at, 0),
			Name:      j.Name,
			Revision:  j.Revision,
			Timestamp: at,
			DueAt:     at,
		})
	}
	return occurrences, skipped, invalid.Err()
}

// HasPast tells whether any instant lies before now, so that the treatment of past instants matters.
func (s Schedule) HasPast(now time.Time) bool {
	return len(s.Instants) > 0 && s.Instants[0].Before(now.Truncate(time.Millisecond))
}

// Last is the schedule's last instant; zero if it has none.
func (s Schedule) Last() time.Time {
	if len(s.Instants) == 0 {
		return time.Time{}
	}
	return s.Instants[len(s.Instants)-1]
}

// scheduleDocument is a schedule as stores keep it.
type scheduleDocument struct {
	Instants []int64 `json:"instants,omitempty"` // Unix milliseconds
}

// Encode returns the schedule as stores keep it: compact JSON.
func (s Schedule) Encode() []byte {
	doc := scheduleDocument{Instants: make([]int64, len(s.Instants))}
	for i, at := range s.Instants {
		doc.Instants[i] = at.UnixMilli()
	}
	return mustEncode(doc)
}

// DecodeSchedule reads what [Schedule.Encode] wrote.
func DecodeSchedule(b []byte) (Schedule, error) {
	var doc scheduleDocument
	if err := json.Unmarshal(b, &doc); err != nil {
		return Schedule{}, fmt.Errorf("decode schedule: %w", err)
	}
	s := Schedule{Instants: make([]time.Time, len(doc.Instants))}
	for i, ms := range doc.Instants {
		s.Instants[i] = time.UnixMilli(ms).UTC()
	}
	return s, nil
}

// Encode returns the options as stores keep them: compact JSON, or nothing if all are left at their defaults.
func (o Options) Encode() []byte {
	if o == (Options{}) {
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

// mustEncode marshals one of this package's own documents, none of which can fail to.
func mustEncode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
