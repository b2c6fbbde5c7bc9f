// Package callbackstest is the suite that every sender of callbacks passes. It speaks to a real receiver, which the
// caller sets up and describes by a [Harness].
package callbackstest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// Harness is a sender with a receiver for it.
type Harness struct {
	Sender callbacks.Sender
	// Data makes valid callback data, an object whose member payload is carried, byte for byte, to the receiver. It has
	// no member headers, but may have one, an object of strings.
	Data func(payload string) []byte
	// Await waits until the receiver has taken a delivery and answers its first arrival; it fails the test when ctx
	// ends.
	Await func(ctx context.Context, t *testing.T, id job.ID) Received

	// Attributes answers the attributes of a CloudEvent in binary mode that arrived with a delivery, decoded, by their
	// names; nil if the sender has no binary mode.
	Attributes func(ctx context.Context, t *testing.T, id job.ID) map[string]string

	// Span answers the attributes of an attempt's span after a delivery that was taken, with data that Data makes.
	Span func(id job.ID) []attribute.KeyValue

	// Good is callback data, by a name for the test, that Validate must accept and the receiver must get.
	Good map[string][]byte
	// Bad is callback data that Validate must refuse.
	Bad []Bad
	// Failures are the ways in which an attempt can fail.
	Failures []Failure
	// Secrets must appear in no error. The data that Data makes, or the sender's options, contain them.
	Secrets []string
	// Hang makes the receiver take no delivery until Resume.
	Hang func(t *testing.T) Hang
}

// Received is a delivery as it arrived at the receiver.
type Received struct {
	ID        string
	Tenant    string // [NotTold] if it was not sent
	Key       string
	Timestamp string // as job.FormatTime writes it
	Attempt   int
	SentAt    time.Time // whole seconds
	Payload   string
	// ContentType is empty if there was none.
	ContentType string
	// Step, in decimal, and Subscriber are the part of a sequence; [NotTold] if it was not sent.
	Step       string
	Subscriber string
	// TraceParent and TraceState are empty if there were none.
	TraceParent string
	TraceState  string
	// Headers has others as they came, by their names in lower case: at least those of Standard Webhooks (webhook-id,
	// webhook-timestamp and webhook-signature), and those that begin with "x-".
	Headers map[string]string
}

// NotTold stands for a tenant or a part of a sequence that was not sent, not even as empty.
const NotTold = "(not told)"

// Bad is callback data that Validate must refuse, with exactly the fields it must name, in order.
type Bad struct {
	Name     string
	Data     string
	Pointers []string
}

// Failure is one way in which an attempt fails.
type Failure struct {
	Name string
	// Data is valid callback data; nil is that of Harness.Data.
	Data []byte
	// Begin brings the failure about, and undo ends it; nil if the data does it.
	Begin func(t *testing.T) (undo func())
	// Want is the failure's kind; Err is not compared. After must be as wanted, but for an Unavailable one only more
	// than zero.
	Want callbacks.Failure
	// Says is a text that the error must contain.
	Says []string
}

// Hang is a receiver that takes nothing.
type Hang struct {
	// Held waits until the delivery, or word of the hang, has come as far as it can.
	Held func(id job.ID)
	// Resume ends it. It may be called twice.
	Resume func()
}

// patience bounds calls that must end by themselves. Nothing is timed by it; it turns a hanging test into a failing
// one.
const patience = 10 * time.Minute

// Run runs the suite. Each call of open makes a harness for one test, which it ends by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s suite)
	}{
		{"payload", testPayload},
		{"payload of a step", testStepPayload},
		{"no payload", testNoPayload},
		{"part of a sequence", testPart},
		{"tenant", testTenant},
		{"envelope", testEnvelope},
		{"trace", testTrace},
		{"span", testSpan},
		{"secrets", testSecrets},
		{"no secrets", testNoSecrets},
		{"signatures", testSignatures},
		{"structured events", testStructured},
		{"binary events", testBinary},
		{"no events", testNoEvents},
		{"concurrent", testConcurrent},
		{"validate", testValidate},
		{"good data", testGood},
		{"destination", testDestination},
		{"failures", testFailures},
		{"success means taken", testTaken},
		{"context", testContext},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, suite{open(t)}) })
	}
}

type suite struct{ Harness }

// instant is the instant of test deliveries.
var instant = time.Date(2026, 12, 24, 14, 0, 0, 250e6, time.UTC)

// delivery makes a delivery with a unique id. The receiver may still hold deliveries of earlier runs.
func (s suite) delivery(payload string) callbacks.Delivery {
	name := job.Name{Tenant: job.DefaultTenant, Key: "suite-" + job.NewToken()}
	return callbacks.Delivery{
		ID:        job.DeliveryID(name, instant, 0, ""),
		Name:      name,
		Timestamp: instant,
		Attempt:   1,
		SentAt:    instant.Add(1750 * time.Millisecond),
		Data:      s.Data(payload),
	}
}

// send makes one attempt, and looks for secrets in its error.
func (s suite) send(ctx context.Context, t *testing.T, d callbacks.Delivery) error {
	t.Helper()
	err := s.Sender.Send(ctx, d)
	s.keepsSecrets(t, err)
	return err
}

func (s suite) keepsSecrets(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, secret := range s.Secrets {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("a secret stands in the error %q", err)
		}
	}
}

// deliver makes attempts as the dispatcher would, but takes no other failure than that there is no connection.
func (s suite) deliver(ctx context.Context, t *testing.T, d callbacks.Delivery) {
	t.Helper()
	for {
		err := s.send(ctx, t, d)
		if err == nil {
			return
		}
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || !failure.Unavailable {
			t.Fatalf("sending %s cost an attempt: %v", d.Name, err)
		}
		select {
		case <-time.After(failure.After):
		case <-ctx.Done():
			t.Fatalf("the sender found no connection again: %v", err)
		}
	}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
