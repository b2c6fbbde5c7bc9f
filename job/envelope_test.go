package job_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func withEnvelope(t *testing.T, callback string) (job.Job, error) {
	t.Helper()
	draft, err := job.Decode([]byte(`{"key":"k","delay":"1s","callback":` + callback + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return draft.Job(job.DefaultTenant, limits)
}

// envelopeOf returns the envelope that a draft asks for.
func envelopeOf(d *job.Draft) job.Envelope {
	if d.Callback.Envelope == nil {
		return job.EnvelopeNone
	}
	return *d.Callback.Envelope
}

// An envelope is part of the options, is shown as it was submitted, and survives storage and patches.
func TestEnvelope(t *testing.T) {
	const member = `,"envelope":"cloudevents-binary"`
	for submitted, shown := range map[string]string{
		``: ``, `,"envelope":"none"`: ``, `,"envelope":null`: ``,
		`,"envelope":"cloudevents"`: `,"envelope":"cloudevents"`, member: member,
	} {
		j, err := withEnvelope(t, `{"type":"http","data":{ "a": 1 }`+submitted+`}`)
		if err != nil {
			t.Errorf("%s: %v", submitted, err)
			continue
		}
		if (j.Options.Envelope == job.EnvelopeNone) != (shown == ``) {
			t.Errorf("%s: the envelope is %q", submitted, j.Options.Envelope)
		}
		stored, err := job.DecodeOptions(j.Options.Encode())
		if err != nil || stored.Envelope != j.Options.Envelope {
			t.Errorf("%s: stored as %q: %v", submitted, stored.Envelope, err)
		}
		if d := j.Draft(); envelopeOf(&d) != j.Options.Envelope {
			t.Errorf("%s: the draft has %q", submitted, envelopeOf(&d))
		}
		target := j.Target()
		if got, want := string(target.EncodeCallback()), `{"type":"http","data":{ "a": 1 }`+shown+`}`; got != want {
			t.Errorf("%s: shown as %s, want %s", submitted, got, want)
		}
		if draft, err := j.Patch([]byte(`{"retry":{"maxAttempts":3}}`)); err != nil || envelopeOf(&draft) != j.Options.Envelope {
			t.Errorf("%s: after a patch of something else %q: %v", submitted, envelopeOf(&draft), err)
		}
		if draft, err := j.Patch([]byte(`{"callback":{"envelope":null}}`)); err != nil || draft.Callback.Envelope != nil {
			t.Errorf("%s: after a patch that takes it away %q: %v", submitted, envelopeOf(&draft), err)
		}
	}
	for _, wrong := range []string{`"Cloudevents"`, `"cloudevents-structured"`, `" "`} {
		_, err := withEnvelope(t, `{"type":"http","data":1,"envelope":`+wrong+`}`)
		if invalid, ok := errors.AsType[*job.Invalid](err); !ok || len(invalid.Fields) != 1 || invalid.Fields[0].Pointer != "/callback/envelope" {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// Jobs that were stored before there were envelopes have none.
func TestOptionsWithoutEnvelope(t *testing.T) {
	options, err := job.DecodeOptions([]byte(`{"deadline":"5s"}`))
	if err != nil || options.Envelope != job.EnvelopeNone || time.Duration(options.Deadline) != 5*time.Second {
		t.Errorf("%+v, %v", options, err)
	}
	if b := (job.Options{}).Encode(); b != nil {
		t.Errorf("no options are encoded as %s", b)
	}
}
