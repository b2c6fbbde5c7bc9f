package handlers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// events is a callback type that takes structured events.
type events struct{ sender }

func (events) Envelopes() []job.Envelope { return []job.Envelope{job.EnvelopeStructured} }

func withEvents(c *handlers.Config) {
	c.Callbacks = callbacks.NewRegistry(sender("http"), events{"kafka"})
}

func enveloped(callbackType, envelope string, offset time.Duration) string {
	return with(body("a", offset), "callback", map[string]any{"type": callbackType, "data": 1, "envelope": envelope})
}

// An envelope is shown wherever the callback is, is sent with each firing, and is kept by a change that does not name
// it.
func TestEnvelope(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withEvents)
	shows := func(where string, g answer) {
		t.Helper()
		if !strings.Contains(string(g.body), `"envelope":"cloudevents"`) {
			t.Errorf("%s does not show the envelope: %s", where, g.body)
		}
	}
	claimed := func(n int) []store.Claimed {
		t.Helper()
		all := a.claim()
		for _, c := range all {
			if c.Options.Envelope != job.EnvelopeStructured {
				t.Errorf("claimed with the envelope %q", c.Options.Envelope)
			}
		}
		if len(all) != n {
			t.Fatalf("%d were claimed, not %d", len(all), n)
		}
		return all
	}
	a.call("PUT", "/v1/jobs/a", enveloped("kafka", "cloudevents", 0)).want(201)
	shows("the job", a.call("GET", "/v1/jobs/a", "").want(200))
	a.settle(claimed(1)[0], store.Bury, "failed")
	shows("the dead letter", a.call("GET", "/v1/dead-letters", "").want(200))
	a.call("POST", "/v1/jobs/a/trigger", "").want(202)
	claimed(1)
	a.call("PATCH", "/v1/jobs/a", `{"callback":{"data":2}}`, "Content-Type: application/merge-patch+json").want(200)
	shows("the patched job", a.call("GET", "/v1/jobs/a", "").want(200))
	a.call("PATCH", "/v1/jobs/a", `{"callback":{"envelope":null}}`, "Content-Type: application/merge-patch+json").want(200)
	if g := a.call("GET", "/v1/jobs/a", ""); strings.Contains(string(g.body), "envelope") {
		t.Errorf("no envelope is shown as %s", g.body)
	}
}

func TestEnvelopesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, submitted := range map[string]string{
		"the type has none":    enveloped("http", "cloudevents", time.Hour),
		"the type has another": enveloped("kafka", "cloudevents-binary", time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, withEvents)
			if got := a.call("PUT", "/v1/jobs/a", submitted).want(422).problem().named(); !slices.Equal(got, []string{"/callback/envelope"}) {
				t.Errorf("the answer names %q", got)
			}
		})
	}
}
