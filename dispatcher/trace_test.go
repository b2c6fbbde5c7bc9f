package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const submission job.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,a=1"

// submitted returns a change for submit: the submitting request has a trace.
func submitted(j *job.Job) { j.Options.Trace = submission }

// traced returns a change of a replica's configuration, and the spans that it makes from then on.
func traced(sampler sdktrace.Sampler) (func(*dispatcher.Config), *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler))
	return func(c *dispatcher.Config) { c.Traces = provider }, spans
}

// TestAttemptsHaveSpans: each span is the root of its own trace, linked to the submission, and the receiver gets its
// context.
func TestAttemptsHaveSpans(t *testing.T) {
	type attempt struct {
		number    int64
		deviation float64 // at least
		outcome   string
		failure   string
	}
	for _, c := range []struct {
		name    string
		answers []error // the last one repeats
		change  func(*job.Job)
		want    []attempt
	}{
		{"delivered", []error{nil}, submitted, []attempt{{1, 0, "ack", ""}}},
		{"no submission that had a trace", []error{nil}, func(*job.Job) {}, []attempt{{1, 0, "ack", ""}}},
		{"a submission's trace that can't be read", []error{nil}, func(j *job.Job) { j.Options.Trace = "nonsense" }, []attempt{{1, 0, "ack", ""}}},
		{
			"retried", []error{callbacks.RetryAfter(errors.New("busy"), 40*time.Second), nil}, submitted,
			[]attempt{{1, 0, "retry", "busy"}, {2, 40, "ack", ""}},
		},
		{"buried", []error{callbacks.Permanent(errors.New("gone"))}, submitted, []attempt{{1, 0, "bury", "gone"}}},
		{
			"released", []error{callbacks.Unavailable(errors.New("no connection"), time.Second), nil}, submitted,
			[]attempt{{1, 0, "release", "no connection"}, {1, 1, "ack", ""}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				var within []trace.SpanContext // the contexts in which the sender was called
				answers := c.answers
				b.receiver.answers(func(ctx context.Context, _ callbacks.Delivery) error {
					within = append(within, trace.SpanContextFromContext(ctx))
					err := answers[0]
					if len(answers) > 1 {
						answers = answers[1:]
					}
					return err
				})
				on, spans := traced(sdktrace.AlwaysSample())
				j := b.submit("k", c.change, 0)
				b.replica(on)
				time.Sleep(10 * time.Minute)
				synctest.Wait() // so that the callbacks' writes can be read
				ended, sent := spans.Ended(), b.receiver.of("k")
				if len(ended) != len(c.want) || len(sent) != len(c.want) {
					t.Fatalf("%d spans of %d attempts, want %d", len(ended), len(sent), len(c.want))
				}
				traces := map[trace.TraceID]bool{submission.SpanContext().TraceID(): true}
				for i, span := range ended {
					want, got := c.want[i], attribute.NewSet(span.Attributes()...)
					expectAttribute(t, got, "carillon.job.tenant", "default")
					expectAttribute(t, got, "carillon.job.key", "k")
					expectAttribute(t, got, "carillon.callback.type", "test")
					expectAttribute(t, got, "carillon.delivery.id", sent[i].ID.String())
					expectAttribute(t, got, "carillon.timestamp", job.FormatTime(j.Schedule.Instants[0]))
					expectAttribute(t, got, "carillon.attempt", want.number)
					expectAttribute(t, got, "carillon.outcome", want.outcome)
					expectAttribute(t, got, "carillon.deviation", span.StartTime().Sub(j.Schedule.Instants[0]).Seconds())
					if deviation := span.StartTime().Sub(j.Schedule.Instants[0]).Seconds(); deviation < want.deviation || !span.StartTime().Equal(sent[i].SentAt) {
						t.Errorf("attempt %d began %v s after its instant, and was sent at %s", i, deviation, sent[i].SentAt)
					}
					attributes := 8
					if want.failure != "" {
						attributes++
						expectAttribute(t, got, "error.type", "*errors.errorString")
					}
					if got.Len() != attributes || span.Name() != "fire test" || span.SpanKind() != trace.SpanKindProducer || span.Parent().IsValid() {
						t.Errorf("the span is %s of kind %s, a child of %v, with %v", span.Name(), span.SpanKind(), span.Parent(), got.ToSlice())
					}
					if status := span.Status(); (status.Code == codes.Error) != (want.failure != "") || status.Description != want.failure {
						t.Errorf("the span of attempt %d has the status %+v", i, status)
					}
					if id := span.SpanContext().TraceID(); traces[id] {
						t.Error("an attempt has the trace of another, or of the submission")
					} else {
						traces[id] = true
					}
					if sent[i].Trace != job.TraceOf(span.SpanContext()) || !within[i].Equal(span.SpanContext()) {
						t.Errorf("the receiver got the trace %q, and the sender %v; the span is %v", sent[i].Trace, within[i], span.SpanContext())
					}
					links := span.Links()
					if from := j.Options.Trace.SpanContext(); !from.IsValid() && len(links) > 0 ||
						from.IsValid() && (len(links) != 1 || !links[0].SpanContext.Equal(from)) {
						t.Errorf("the links are %+v", links)
					}
				}
			})
		})
	}
}

func expectAttribute(t *testing.T, got attribute.Set, name attribute.Key, want any) {
	t.Helper()
	if v, _ := got.Value(name); v.AsInterface() != want {
		t.Errorf("the attribute %s is %v, want %v", name, v.AsInterface(), want)
	}
}

// TestErrorTypes: a span names the type of its error, in one of a few words.
func TestErrorTypes(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"a sender's own":       {callbacks.RetryAfter(fmt.Errorf("later: %w", statusError(503)), time.Minute), "503"},
		"a permanent one":      {callbacks.Permanent(statusError(410)), "410"},
		"a timeout":            {fmt.Errorf("no answer: %w", context.DeadlineExceeded), "timeout"},
		"the network's":        {fmt.Errorf("POST h: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}), "*net.OpError"},
		"none but its text":    {errors.New("no"), "*errors.errorString"},
		"the sender's outage":  {callbacks.Unavailable(&net.DNSError{Err: "none"}, time.Minute), "*net.DNSError"},
		"an end of the sender": {callbacks.Unavailable(context.Canceled, time.Minute), "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.answers(func(context.Context, callbacks.Delivery) error { return c.err })
				on, spans := traced(sdktrace.AlwaysSample())
				b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
				b.replica(on)
				time.Sleep(time.Second)
				synctest.Wait()
				if len(spans.Ended()) == 0 {
					t.Fatal("there is no span")
				}
				expectAttribute(t, attribute.NewSet(spans.Ended()[0].Attributes()...), "error.type", c.want)
			})
		})
	}
}

// statusError is an error with its own type for traces.
type statusError int

func (e statusError) Error() string     { return "refused" }
func (e statusError) ErrorType() string { return strconv.Itoa(int(e)) }

// A callback that is not sent has no span.
func TestNoAttemptNoSpan(t *testing.T) {
	bubble(t, func(b *bench) {
		on, spans := traced(sdktrace.AlwaysSample())
		b.submit("late", func(j *job.Job) { submitted(j); j.Options.Deadline = job.Duration(time.Second) }, -time.Minute)
		b.submit("nobody's", func(j *job.Job) { submitted(j); j.Callback.Type = "unknown" }, 0)
		b.submit("k", nil, 0)
		b.replica(on)
		time.Sleep(time.Minute)
		if n := len(spans.Started()); n != 1 || b.receiver.count() != 1 {
			t.Errorf("%d spans of %d attempts, want 1", n, b.receiver.count())
		}
	})
}

// TestWithoutTraces: no trace is passed on, neither the submission's nor that of the dispatcher's context.
func TestWithoutTraces(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(ctx context.Context, _ callbacks.Delivery) error {
			if trace.SpanContextFromContext(ctx).IsValid() {
				t.Error("the sender is given a span")
			}
			return nil
		})
		b.submit("k", submitted, 0)
		b.replica(nil)
		time.Sleep(time.Minute)
		if sent := b.receiver.of("k"); len(sent) != 1 || sent[0].Trace != "" {
			t.Errorf("sent %+v", sent)
		}
	})
}

// TestAttemptsThatAreNotSampled: unsampled attempts pass that decision on, so that receivers don't begin a trace whose
// rest is missing.
func TestAttemptsThatAreNotSampled(t *testing.T) {
	bubble(t, func(b *bench) {
		off, spans := traced(sdktrace.NeverSample())
		b.submit("k", submitted, 0)
		b.replica(off)
		time.Sleep(time.Minute)
		sent := b.receiver.of("k")
		if len(sent) != 1 || len(spans.Ended()) > 0 {
			t.Fatalf("%d sent, %d spans", len(sent), len(spans.Ended()))
		}
		if span := sent[0].Trace.SpanContext(); !span.IsValid() || span.IsSampled() || span.TraceID() == submission.SpanContext().TraceID() {
			t.Errorf("the receiver got the trace %q", sent[0].Trace)
		}
	})
}

// A redriven dead letter is linked to the submission with which it was buried.
func TestRedrivenKeepsItsTrace(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(context.Context, callbacks.Delivery) error { return callbacks.Permanent(errors.New("gone")) })
		on, spans := traced(sdktrace.AlwaysSample())
		b.submit("k", submitted, 0)
		b.replica(on)
		time.Sleep(time.Minute)
		dead := b.dead()
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		if _, err := b.store.SettleDead(b.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: []job.ID{dead[0].ID}, Outcome: store.Redrive, Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		ended := spans.Ended()
		if len(ended) != 2 || len(ended[1].Links()) != 1 || !ended[1].Links()[0].SpanContext.Equal(submission.SpanContext()) {
			t.Errorf("%d spans have ended: %+v", len(ended), ended)
		}
	})
}
