package callbacks_test

import (
	"context"
	"errors"
	"slices"
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
