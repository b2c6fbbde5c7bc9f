// Package job is Carillon's domain: jobs as clients submit them, their checks, and the expansion of their schedules
// into occurrences. It does no I/O and reads no clock; the present time is always passed in.
package job

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json"
)

// DefaultTenant owns every job whose submission names no tenant.
const DefaultTenant = "default"

// MaxTenantBytes bounds a tenant's name.
const MaxTenantBytes = 64

// ValidTenant reports whether a name is valid for a tenant: 1 to [MaxTenantBytes] of ASCII letters, digits, ".", "_"
// and "-". So it needs no encoding in a header, a path or a metric's label.
func ValidTenant(name string) bool { return validName(name, MaxTenantBytes) }

// MaxSecretName bounds the name of a secret, in bytes.
const MaxSecretName = 128

// ValidSecretName reports whether a name is valid for a secret: like a tenant's name, of 1 to [MaxSecretName] bytes.
func ValidSecretName(name string) bool { return validName(name, MaxSecretName) }

// The values of a callback's signing besides the names of secrets.
const (
	// DefaultSigning is the name of the secret that signs the callbacks of jobs without a name, if their tenant has it.
	DefaultSigning = "default"
	// NoSigning means no signature, whichever secrets exist. No secret can have this name.
	NoSigning = "none"
)

// ValidSigningName reports whether a name is valid for a signing secret.
func ValidSigningName(name string) bool { return ValidSecretName(name) && name != NoSigning }

func validName(name string, most int) bool {
	inName := func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	for i := range len(name) {
		if !inName(name[i]) {
			return false
		}
	}
	return 0 < len(name) && len(name) <= most
}

// Name identifies a job: keys are unique within a tenant.
type Name struct {
	Tenant string
	Key    string
}

// String returns the name for logs: the key, after the tenant unless that is the default one.
func (n Name) String() string {
	if n.Tenant == DefaultTenant {
		return n.Key
	}
	return n.Tenant + "/" + n.Key
}

// Job is a client's job: a schedule, a callback, and the treatment of failures.
type Job struct {
	Name
	// Revision stamps the schedule. A replaced or cancelled job's occurrences no longer match it.
	Revision Revision
	// Version stamps the whole job: each change by a client changes it. At first it equals the revision.
	Version  Revision
	Callback Callback
	Options  Options
	Schedule Schedule

	CreatedAt time.Time
	UpdatedAt time.Time
	// ExpiresAt is the earliest time at which a sweep may remove the job, once it has no occurrence left.
	ExpiresAt time.Time
	// PausedAt is the beginning of the job's pause; zero if it is not paused.
	PausedAt time.Time

	// Cursor is the time up to which a recurring schedule has been expanded; zero for others, and for a schedule that
	// has ended. The instants up to it have been put into the store; no later instant may fire.
	Cursor time.Time
	// ExpandAt is the time of the next expansion; zero if there is nothing to expand.
	ExpandAt time.Time
	// Planned counts the occurrences of this revision so far: those put into the store or carried over, and Missed.
	// Zero means unknown. Planned, less the pending ones, Failed and Missed, were delivered.
	Planned int
	// Missed counts the instants of this revision that were dropped by deadline or catch-up.
	Missed int
	// Failed counts the occurrences that were given up, even if their dead letters are gone.
	Failed int
	// Trouble is that of the latest missed or failed instant.
	Trouble Trouble
}

// Callback is the call to make. The sender of its type reads Data, whose bytes are kept exactly as submitted.
type Callback struct {
	Type string
	Data []byte
}

// Envelope is the form in which a payload is delivered.
type Envelope string

// The envelopes. The last two are CloudEvents 1.0, in their structured and their binary mode.
const (
	EnvelopeNone       Envelope = "" // submitted as "none" or not at all: the payload is the body
	EnvelopeStructured Envelope = "cloudevents"
	EnvelopeBinary     Envelope = "cloudevents-binary"
)

// String returns the envelope as it is submitted.
func (e Envelope) String() string {
	if e == EnvelopeNone {
		return "none"
	}
	return string(e)
}

// Occurrence is one firing of a job at one instant.
type Occurrence struct {
	ID   ID
	Name Name
	// Priority is that of the definition when the occurrence was made; it never changes. Tenant and priority are the
	// occurrence's lane.
	Priority Priority
	// Revision is that of the occurrence's definition. An occurrence with an empty revision stands on its own: it has
	// its own callback and options, and fires even if its job is gone.
	Revision Revision
	// Position and subscriber distinguish the occurrences of one job at the same instant.
	Position int
	// Part is the occurrence's part of a sequence; nil if the job has no steps.
	Part *Part
	// Timestamp is the intended instant; it never changes.
	Timestamp time.Time
	// DueAt is the time from which the occurrence may be claimed: at first its timestamp, moved by its job's spread (see
	// [Options.FiresAt]), later a retry's time or a lease's end.
	DueAt time.Time
	// ScheduledAt is the time of the present claim; zero if there is none.
	ScheduledAt time.Time
	// Token is the fencing token of the present claim; empty if there is none.
	Token string
	// Attempt counts claims, except those that were given back unfired.
	Attempt int
	// LastError is the error of the last failed attempt; empty if none failed.
	LastError string
	// FailedAt is the time at which the occurrence was buried; zero if it was not.
	FailedAt time.Time
	// Own has the callback and options of an occurrence that stands on its own, else nil.
	Own *Target
}

// Part is a part of a sequence: one job step for one subscriber.
type Part struct {
	// Step is the index of the job step among the job's steps.
	Step int
	// Subscriber names the receiver of the step; empty if the job has no subscribers.
	Subscriber string
}

// Target is the part of a job that firing needs.
type Target struct {
	Callback Callback
	Options  Options
}

// Target returns the part of the job that firing needs.
func (j *Job) Target() Target { return Target{Callback: j.Callback, Options: j.Options} }

// Held reports whether a replica holds the occurrence at now: it is claimed, and its lease has not ended.
func (o Occurrence) Held(now time.Time) bool { return o.Token != "" && o.DueAt.After(now) }

// subscriber returns the name of the occurrence's subscriber; empty if there is none.
func (o Occurrence) subscriber() string {
	if o.Part == nil {
		return ""
	}
	return o.Part.Subscriber
}

// DeliveryID returns the stable id of every attempt at the occurrence, see [DeliveryID].
func (o Occurrence) DeliveryID() ID {
	return DeliveryID(o.Name, o.Timestamp, o.Position, o.subscriber())
}

// Payload returns the occurrence's own payload, which replaces its callback's; nil if it has none.
func (o Occurrence) Payload(options Options) []byte {
	if options.Event != nil {
		return options.Event.Data
	}
	if o.Part == nil {
		return nil
	}
	return options.Payloads[o.Part.Step]
}

// EncodeCallback writes the callback as it was submitted, with its data byte for byte: an encoder would remove the
// data's white space.
func (t *Target) EncodeCallback() []byte {
	b := slices.Concat([]byte(`{"type":`), mustEncode(t.Callback.Type), []byte(`,"data":`), t.Callback.Data)
	if e := t.Options.Envelope; e != EnvelopeNone {
		b = slices.Concat(b, []byte(`,"envelope":`), mustEncode(e))
	}
	if signing := t.Options.Signing; signing != "" {
		b = slices.Concat(b, []byte(`,"signing":`), mustEncode(signing))
	}
	return append(b, '}')
}

// mustEncode marshals a document of this package. Marshalling such a document can't fail.
func mustEncode(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true)) // maps too, so that equal values have equal bytes
	if err != nil {
		panic(err)
	}
	return b
}
