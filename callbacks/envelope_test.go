package callbacks_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// plain is a sender that knows of no envelopes; it refuses the data "bad".
type plain string

func (s plain) Type() string { return string(s) }

func (plain) Destination([]byte) string { return "somewhere" }

func (plain) Validate(data []byte) error {
	if string(data) == `"bad"` {
		return job.InvalidField("/x", "is bad")
	}
	return nil
}

func (plain) Send(context.Context, callbacks.Delivery) error { return errors.New("never sent") }

// some is a sender that has structured events.
type some struct{ plain }

func (some) Envelopes() []job.Envelope { return []job.Envelope{job.EnvelopeStructured} }

func TestValidateEnvelope(t *testing.T) {
	registry := callbacks.NewRegistry(plain("plain"), some{"some"})
	for _, test := range []struct {
		name     string
		callback job.Callback
		envelope job.Envelope
		pointers []string
	}{
		{"none", job.Callback{Type: "plain", Data: []byte(`1`)}, job.EnvelopeNone, nil},
		{"none where there are some", job.Callback{Type: "some", Data: []byte(`1`)}, job.EnvelopeNone, nil},
		{"one there is", job.Callback{Type: "some", Data: []byte(`1`)}, job.EnvelopeStructured, nil},
		{"one where there are none", job.Callback{Type: "plain", Data: []byte(`1`)}, job.EnvelopeStructured, []string{"/callback/envelope"}},
		{"another than there is", job.Callback{Type: "some", Data: []byte(`1`)}, job.EnvelopeBinary, []string{"/callback/envelope"}},
		{
			"wrong data too", job.Callback{Type: "some", Data: []byte(`"bad"`)}, job.EnvelopeBinary,
			[]string{"/callback/data/x", "/callback/envelope"},
		},
		{"no such type", job.Callback{Type: "other", Data: []byte(`1`)}, job.EnvelopeBinary, []string{"/callback/type"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := registry.Validate(job.Target{Callback: test.callback, Options: job.Options{Envelope: test.envelope}})
			var pointers []string
			if invalid, ok := errors.AsType[*job.Invalid](err); ok {
				for _, f := range invalid.Fields {
					pointers = append(pointers, f.Pointer)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(pointers, test.pointers) {
				t.Errorf("Validate names %q, want %q: %v", pointers, test.pointers, err)
			}
		})
	}
}

// TestEventOfTheService has its own type and subject, and the tenant as its source.
func TestEventOfTheService(t *testing.T) {
	d := callbacks.Delivery{
		Name: job.Name{Tenant: "acme", Key: job.ReservedPrefix + "event:x"}, Envelope: job.EnvelopeBinary,
		Event:   &job.Event{Type: job.EventFinished, Subject: "a/b", Data: []byte(`{"tenant":"acme"}`)},
		Payload: []byte(`{"tenant":"acme"}`),
	}
	got := map[string]string{}
	m := d.Message(nil)
	for _, a := range m.Attributes {
		got[a.Name] = a.Value
	}
	if got["type"] != "carillon.job.finished" || got["subject"] != "a/b" || got["source"] != "/acme" || string(m.Body) != `{"tenant":"acme"}` {
		t.Errorf("in binary mode it has %q and %s", got, m.Body)
	}
	d.Envelope = job.EnvelopeStructured
	body := string(d.Message(nil).Body)
	for _, want := range []string{`"source":"/acme"`, `"type":"carillon.job.finished"`, `"subject":"a/b"`, `"data":{"tenant":"acme"}`} {
		if !strings.Contains(body, want) {
			t.Errorf("in structured mode it has no %s: %s", want, body)
		}
	}
}
