// Package callbacks defines the interface of senders, and the registry of senders by callback type. Each sender is a
// package below this one; all of them pass the suite in callbackstest.
package callbacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Sender delivers callbacks of one type. It is safe for concurrent use.
type Sender interface {
	// Type is the callback type as jobs name it, such as "http".
	Type() string

	// Validate checks callback data when a job is submitted, without I/O. The error is a [*job.Invalid] with pointers
	// into the data. Send must understand all data that Validate has ever accepted.
	Validate(data []byte) error

	// Destination names the receiver of callback data, such as a host, a queue or a topic, in a few words without secrets.
	// All data with the same destination share its limits, and its outages. Data were accepted by Validate.
	Destination(data []byte) string

	// Send makes one attempt and returns nil only when the receiver has taken responsibility for the delivery. It
	// returns soon after ctx ends. It neither retries nor waits for a receiver to come back: the dispatcher does that,
	// for all replicas. Its error is one of
	//   - [Permanent]: no later attempt can succeed;
	//   - [Refused]: the operator does not allow it;
	//   - [Unavailable]: the sender's own connection failed before the receiver answered, or there is none; it costs the
	//     job no attempt;
	//   - [RetryAfter]: it failed, and the receiver asked for a pause;
	//   - any other: it failed, or may have. The Blame of a [*Failure] names the part that is in trouble, if it is not the
	//     whole destination.
	Send(ctx context.Context, d Delivery) error
}

// Parted is a [Sender] whose destinations have parts that may each be in trouble by themselves, such as the paths of a
// host.
type Parted interface {
	Sender

	// Place returns the Destination of callback data, and the called part of it. The part may contain a secret, and is
	// never shown. The data were accepted by Validate.
	Place(data []byte) (destination, part string)
}

// Enveloper is a [Sender] that can deliver in other forms than the payload alone. Its Send places a [Message].
type Enveloper interface {
	Sender

	// Envelopes are the forms that there are beside [job.EnvelopeNone].
	Envelopes() []job.Envelope
}

// Responder is a [Sender] whose receivers answer when they have done the work, not when they have stored a message as a
// broker does. Traces show the difference.
type Responder interface {
	Sender

	// Responds only marks the sender.
	Responds()
}

// Delivery is one attempt at one occurrence.
type Delivery struct {
	// ID is the same for every attempt at the occurrence, so that receivers can drop duplicates.
	ID   job.ID
	Name job.Name
	// Timestamp is the instant the occurrence is meant for.
	Timestamp time.Time
	// Attempt counts from 1.
	Attempt int
	// SentAt is the time of this attempt.
	SentAt time.Time
	// Data is the job's callback data, byte for byte as submitted.
	Data []byte
	// Payload is a JSON value to deliver instead of the payload in Data; nil if there is none.
	Payload []byte
	// Part is the part of a sequence that is delivered, for the receiver to see; nil if the job is no sequence.
	Part *job.Part
	// Event is the event of the service that is delivered; nil if a job of a client is.
	Event *job.Event
	// Envelope is the form to deliver in: none, or one of the sender's, see [Enveloper].
	Envelope job.Envelope
	// Trace is the trace context to pass on to the receiver; empty if there is none. The headers that a job names
	// itself win: see [TraceHeaders].
	Trace job.Trace
	// Signing names the secret that signs the delivery, or is [job.NoSigning]; empty for the tenant's default, if it has
	// one. See [Delivery.Signature].
	Signing string
	// Secrets has the values that Data only refers to, see [Text], and the signatures; nil has none.
	Secrets Secrets
}

// Secrets returns secrets and signatures for deliveries. It is safe for concurrent use. Its errors are for people, and
// contain no secret. After an error the delivery must not be sent, but a later attempt may succeed.
type Secrets interface {
	// Secret returns the value of a tenant's secret, for a destination by its name from [Registry.Destination].
	Secret(ctx context.Context, tenant, name, destination string) (value string, err error)

	// Sign returns the signatures of a message by a tenant's signing secret, in the form of Standard Webhooks' header
	// webhook-signature. An empty name means the tenant's default; without one, the result is empty.
	Sign(ctx context.Context, tenant, name, messageID string, at time.Time, body []byte) (signature string, err error)
}

// Registry holds the senders that a replica has, by type. It does not change once made.
type Registry struct {
	senders map[string]Sender
}

// NewRegistry makes a registry of senders; no two may have the same type.
func NewRegistry(senders ...Sender) *Registry {
	r := &Registry{senders: make(map[string]Sender, len(senders))}
	for _, s := range senders {
		if _, taken := r.senders[s.Type()]; taken {
			panic("callbacks: two senders of type " + s.Type())
		}
		r.senders[s.Type()] = s
	}
	return r
}

// Types lists the callback types there are, sorted.
func (r *Registry) Types() []string {
	types := make([]string, 0, len(r.senders))
	for t := range r.senders {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// Sender returns the sender of a type; ok is false if this replica has none.
func (r *Registry) Sender(callbackType string) (s Sender, ok bool) {
	s, ok = r.senders[callbackType]
	return s, ok
}

// Destination names the destination of a callback, for people: its type, and its sender's name for the receiver. It is
// the type alone if there is no such sender, or if the sender panics: one callback must not hide all others from those
// who list them. The data were accepted by Validate.
func (r *Registry) Destination(c job.Callback) (destination string) {
	defer func() {
		if recover() != nil { // the dispatcher logs it with the stack when it fires the callback
			destination = c.Type
		}
	}()
	destination, _ = r.Place(c)
	return destination
}

// Place returns the Destination of a callback, and the called part of it, which must not be shown; empty if there are
// no parts. It panics if the sender does.
func (r *Registry) Place(c job.Callback) (destination, part string) {
	switch s := r.senders[c.Type].(type) {
	case nil:
		return c.Type, ""
	case Parted:
		destination, part = s.Place(c.Data)
	default:
		destination = s.Destination(c.Data)
	}
	return c.Type + " " + destination, part
}

// Validate checks a submitted callback by the sender that will send it. The error is a [*job.Invalid] with pointers
// from the job's root.
func (r *Registry) Validate(t job.Target) error {
	c := t.Callback
	s, ok := r.senders[c.Type]
	if !ok {
		return job.InvalidField("/callback/type",
			fmt.Sprintf("%q is not available here; the types are %s, and others need an option of the server, "+
				"such as the address of a broker", c.Type, strings.Join(r.Types(), ", ")))
	}
	err := s.Validate(c.Data)
	invalid, ok := errors.AsType[*job.Invalid](err)
	if err != nil && !ok {
		return err
	}
	var all job.Invalid
	if ok {
		all = *invalid.Under("/callback/data")
	}
	checkEnvelope(s, t.Options.Envelope, &all)
	return all.Err()
}

// checkEnvelope adds an error if the sender can't deliver in an envelope.
func checkEnvelope(s Sender, envelope job.Envelope, invalid *job.Invalid) {
	if envelope == job.EnvelopeNone {
		return
	}
	there := []job.Envelope{job.EnvelopeNone}
	if e, ok := s.(Enveloper); ok {
		there = append(there, e.Envelopes()...)
	}
	if slices.Contains(there, envelope) {
		return
	}
	names := make([]string, len(there))
	for i, e := range there {
		names[i] = e.String()
	}
	invalid.Add("/callback/envelope", fmt.Sprintf("%q is not available for callbacks of type %q; the envelopes are: %s",
		envelope, s.Type(), strings.Join(names, ", ")))
}

// Blame is the extent of a failure: it selects the other callbacks that wait for a while if such failures continue.
type Blame uint8

const (
	// BlameDestination blames the whole destination: it did not answer, for example it refused the connection or took too
	// long.
	BlameDestination Blame = iota
	// BlamePart blames the called part of the destination, which answered with an error of its own, see [Parted].
	BlamePart
	// BlameDelivery blames this delivery only: the destination works, and refused it.
	BlameDelivery
	// BlameNobody is for a delivery that was not sent, so the destination is not at fault.
	BlameNobody
)

// Failure is an attempt's error with advice on the next step. Make one by [Permanent], [Unavailable] or [RetryAfter].
type Failure struct {
	Err error
	// Permanent reports that no later attempt can succeed.
	Permanent bool
	// Unavailable reports that the sender's own connection is at fault, see [Unavailable].
	Unavailable bool
	// After is the least pause before the next attempt; zero leaves it to the retry policy.
	After time.Duration
	// Refused reports that nothing was sent because the operator does not allow it, see [Refused].
	Refused bool
	// Blame is ignored if the failure is permanent, which blames the delivery, or unavailable, which blames the sender.
	Blame Blame
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// StatusOf returns the status with which a receiver refused a delivery, such as 503; zero for other errors. A sender
// whose receivers answer with statuses gives such errors a method Status.
func StatusOf(err error) int {
	if answer, ok := errors.AsType[interface {
		error
		Status() int
	}](err); ok {
		return answer.Status()
	}
	return 0
}

// Permanent marks an error that no later attempt can fix: the occurrence is buried at once.
func Permanent(err error) error { return &Failure{Err: err, Permanent: true} }

// Refused marks an error by which the sender refused to send, because of a rule of the operator that the error names.
// It is permanent.
func Refused(err error) error { return &Failure{Err: err, Permanent: true, Refused: true} }

// Unavailable marks an error of the sender's own connection: as a rule nothing was sent, and if something was, the
// answer was lost with the connection. Neither the job nor its receiver is to blame, so the attempt is not counted. It
// is made again after about the given pause.
func Unavailable(err error, after time.Duration) error {
	return &Failure{Err: err, Unavailable: true, After: after}
}

// RetryAfter marks an error with which the receiver asked for a pause.
func RetryAfter(err error, after time.Duration) error { return &Failure{Err: err, After: after} }
