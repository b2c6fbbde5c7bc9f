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

// ValidTenant reports whether a tenant can have that name: 1 to [MaxTenantBytes] of ASCII letters, digits, ".", "_" and
// "-", so that it stands in a header, in a path and in a metric's label as it is.
func ValidTenant(name string) bool { return validName(name, MaxTenantBytes) }

// MaxSecretName bounds the name of a secret, in bytes.
const MaxSecretName = 128

// ValidSecretName reports whether a secret can have that name: as a tenant's, of 1 to [MaxSecretName] bytes.
func ValidSecretName(name string) bool { return validName(name, MaxSecretName) }

// How a callback is signed, beside the names of signing secrets.
const (
	// DefaultSigning is the secret that signs the callbacks of jobs which name none, if their tenant has it.
	DefaultSigning = "default"
	// NoSigning stands for no signature, whichever secrets there are. It is no secret's name.
	NoSigning = "none"
)

// ValidSigningName reports whether a signing secret can have that name.
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

// String is for logs: the key, after the tenant unless that is the default one.
func (n Name) String() string {
	if n.Tenant == DefaultTenant {
		return n.Key
	}
	return n.Tenant + "/" + n.Key
}

// Job is a client's standing order: a schedule, a callback, and the treatment of failures.
type Job struct {
	Name
	// Revision stamps the schedule. A replaced or cancelled job's occurrences no longer match it.
	Revision Revision
	// Version stamps the whole: it changes with every change that a client makes. It is the revision at first.
	Version  Revision
	Callback Callback
	Options  Options
	Schedule Schedule

	CreatedAt time.Time
	UpdatedAt time.Time
	// ExpiresAt is the earliest time at which the job may be swept away once it has no occurrence left.
	ExpiresAt time.Time
	// PausedAt is since when the job is paused; zero if it is not.
	PausedAt time.Time

	// Cursor is up to where a schedule that recurs has been expanded; zero for others, and for one that has ended.
	// Instants up to there are in the store, or were; no later one may fire.
	Cursor time.Time
	// ExpandAt is when it is to be expanded next; zero if there is nothing to expand.
	ExpandAt time.Time
	// Planned counts the occurrences of this revision so far: those that were given to a store, inserted or carried
	// over, and Missed. It is zero if that is not known. Those that are not pending, Failed or Missed were delivered.
	Planned int
	// Missed counts the instants of this revision that were dropped by deadline or catch-up.
	Missed int
	// Failed counts those that were given up, whatever became of the dead letters.
	Failed int
	// Trouble is that of the latest of the instants that were missed or failed.
	Trouble Trouble
}

// Callback is the call to make. Data belongs to the sender of that type; its bytes are kept exactly as submitted.
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

// String is the envelope as it is submitted.
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
	// Priority is that of the definition when the occurrence was made; it never changes. With the tenant it names the
	// occurrence's lane.
	Priority Priority
	// Revision is that of the definition it belongs to. An occurrence with an empty revision stands on its own: it
	// carries its callback and options itself, and fires whatever became of its job.
	Revision Revision
	// Position tells occurrences of one job at the same instant apart, beside the subscriber.
	Position int
	// Part is the part of a sequence that it belongs to; nil if it belongs to none.
	Part *Part
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
	// LastError is the error of the last attempt that failed, if any did.
	LastError string
	// FailedAt is when it was buried; zero while it is alive.
	FailedAt time.Time
	// Own is the callback and options of an occurrence that stands on its own, else nil.
	Own *Target
}

// Part is a part of a sequence: one job step for one subscriber.
type Part struct {
	// Step is the index of the job step among the job's steps.
	Step int
	// Subscriber names whom it is for; empty if the job has no subscribers.
	Subscriber string
}

// Target is all that firing needs to know of a job.
type Target struct {
	Callback Callback
	Options  Options
}

// Target has the parts of the job that matter when it fires.
func (j *Job) Target() Target { return Target{Callback: j.Callback, Options: j.Options} }

// Held reports whether a replica holds the occurrence at now: it was claimed and its lease has not run out.
func (o Occurrence) Held(now time.Time) bool { return o.Token != "" && o.DueAt.After(now) }

// subscriber names whom it is for, if it is for anyone.
func (o Occurrence) subscriber() string {
	if o.Part == nil {
		return ""
	}
	return o.Part.Subscriber
}

// DeliveryID is the stable id that every attempt at the occurrence carries, see [DeliveryID].
func (o Occurrence) DeliveryID() ID {
	return DeliveryID(o.Name, o.Timestamp, o.Position, o.subscriber())
}

// Payload is the occurrence's own payload, delivered in place of its callback's; nil if it has none.
func (o Occurrence) Payload(options Options) []byte {
	if o.Part == nil {
		return nil
	}
	return options.Payloads[o.Part.Step]
}

// EncodeCallback writes the callback as it was submitted, its data byte for byte: an encoder would strip their white
// space.
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

// mustEncode marshals one of this package's own documents, none of which can fail to.
func mustEncode(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true)) // maps too, so that equal values have equal bytes
	if err != nil {
		panic(err)
	}
	return b
}
