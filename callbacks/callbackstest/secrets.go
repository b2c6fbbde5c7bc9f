package callbackstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// vault has the secrets of one tenant. Its signature contains the parameters of the call.
type vault map[string]string

var errVault = errors.New("the vault is shut")

// Secret implements [callbacks.Secrets].
func (v vault) Secret(_ context.Context, tenant, name, destination string) (string, error) {
	value, ok := v[name]
	if !ok || tenant != job.DefaultTenant {
		return "", fmt.Errorf("%w to %s", errVault, name)
	}
	return strings.ReplaceAll(value, "(destination)", destination), nil
}

// Sign implements [callbacks.Secrets].
func (v vault) Sign(_ context.Context, tenant, name, messageID string, at time.Time, body []byte) (string, error) {
	if name == "missing" {
		return "", errVault
	}
	if name == "" && v["unsigned"] != "" {
		return "", nil
	}
	return fmt.Sprintf("v1,%s/%s/%s/%d/%q", tenant, name, messageID, at.Unix(), body), nil
}

// withHeaders returns callback data with a member headers.
func (s suite) withHeaders(t *testing.T, headers string) []byte {
	t.Helper()
	return []byte(s.edited(t, func(members map[string]jsontext.Value) { members["headers"] = jsontext.Value(headers) }))
}

// testSecrets: a header that refers to a secret arrives with its value, which the data do not contain.
func testSecrets(t *testing.T, s suite) {
	ctx := limited(t)
	d := s.delivery(`{}`)
	d.Data = s.withHeaders(t,
		`{"x-plain":"a","x-token":{"secret":"token"},"x-bearer":{"prefix":"Bearer ","secret":"to.ken-2"},"x-to":{"secret":"to"}}`)
	if err := s.Sender.Validate(d.Data); err != nil {
		t.Fatalf("the data is not accepted: %v", err)
	}
	d.Secrets = vault{"token": "s3cret-1", "to.ken-2": "s3cret-2", "to": "(destination)", "unsigned": "yes"}
	s.deliver(ctx, t, d)
	got := s.Await(ctx, t, d.ID).Headers
	for name, want := range map[string]string{
		"x-plain": "a", "x-token": "s3cret-1", "x-bearer": "Bearer s3cret-2",
		"x-to": s.Sender.Type() + " " + s.Sender.Destination(d.Data),
	} {
		if got[name] != want {
			t.Errorf("the header %s is %q, and not %q", name, got[name], want)
		}
	}
	references := s.Sender.(callbacks.Referrer).References(d.Data)
	want := []callbacks.Reference{
		{Pointer: "/headers/x-bearer/secret", Name: "to.ken-2"}, {Pointer: "/headers/x-to/secret", Name: "to"},
		{Pointer: "/headers/x-token/secret", Name: "token"},
	}
	if !slices.Equal(references, want) {
		t.Errorf("the references are %v, and not %v", references, want)
	}
	for name, bad := range map[string][2]string{
		"name":           {`{"secret":"a b"}`, "/headers/x-a/secret"},
		"no name":        {`{"prefix":"a"}`, "/headers/x-a/secret"},
		"empty name":     {`{"secret":""}`, "/headers/x-a/secret"},
		"name no string": {`{"secret":1}`, "/headers/x-a/secret"},
		"unknown member": {`{"secret":"a","suffix":"b"}`, "/headers/x-a/suffix"},
		"line break":     {`{"secret":"a","prefix":"b\r\nX: c"}`, "/headers/x-a/prefix"},
		"space":          {`{"secret":"a","prefix":" b"}`, "/headers/x-a/prefix"},
		"list":           {`["a"]`, "/headers/x-a"},
	} {
		err := s.Sender.Validate(s.withHeaders(t, `{"x-a":`+bad[0]+`}`))
		invalid, ok := errors.AsType[*job.Invalid](err)
		if !ok || len(invalid.Fields) != 1 || invalid.Fields[0].Pointer != bad[1] {
			t.Errorf("%s: %v; it does not name %s", name, err, bad[1])
		}
	}
}

// testNoSecrets: a delivery that lacks a secret or a signature is not sent, is retried, and does not count against the
// destination.
func testNoSecrets(t *testing.T, s suite) {
	refers := s.withHeaders(t, `{"x-token":{"secret":"token"}}`)
	for name, c := range map[string]struct {
		data    []byte
		signing string
		secrets callbacks.Secrets
		says    string
	}{
		"missing secret":         {refers, "none", vault{}, "shut to token"},
		"no secrets":             {refers, "none", nil, "no secrets"},
		"missing signing secret": {s.Data(`{}`), "missing", vault{}, "shut"},
		"no signing secrets":     {s.Data(`{}`), "partner", nil, "no secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := limited(t)
			s.deliver(ctx, t, s.delivery(`{}`)) // so that there is a connection
			d := s.delivery(`{}`)
			d.Data, d.Signing, d.Secrets = c.data, c.signing, c.secrets
			err := s.send(ctx, t, d)
			failure, ok := errors.AsType[*callbacks.Failure](err)
			if !ok || failure.Permanent || failure.Unavailable || failure.Blame != callbacks.BlameNobody ||
				!strings.Contains(err.Error(), c.says) {
				t.Fatalf("it ends with %v", err)
			}
			d.Secrets = vault{"token": "s3cret", "missing": "s3cret"}
			d.Signing = ""
			s.deliver(ctx, t, d)
			if got := s.Await(ctx, t, d.ID); got.Attempt != d.Attempt {
				t.Errorf("the receiver got the attempt %d", got.Attempt)
			}
		})
	}
}

// testSignatures: the signature is of the very bytes that arrive, with the id and the time that arrive beside it.
func testSignatures(t *testing.T, s suite) {
	for _, c := range []struct {
		name, signing string
		envelope      job.Envelope
		secrets       callbacks.Secrets
		signed        bool
	}{
		{"by default", "", job.EnvelopeNone, vault{}, true},
		{"by name", "partner", job.EnvelopeNone, vault{}, true},
		{"with an event", "", job.EnvelopeStructured, vault{}, true},
		{"with the attributes of an event", "", job.EnvelopeBinary, vault{}, true},
		{"not, as its job asks", "none", job.EnvelopeNone, vault{}, false},
		{"not, as there is no default", "", job.EnvelopeNone, vault{"unsigned": "yes"}, false},
		{"not, as there are no secrets", "", job.EnvelopeNone, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{ "a": 1 }`)
			d.Signing, d.Envelope, d.Secrets = c.signing, c.envelope, c.secrets
			s.deliver(ctx, t, d)
			got := s.Await(ctx, t, d.ID)
			at := strconv.FormatInt(d.SentAt.Unix(), 10)
			want := fmt.Sprintf("v1,%s/%s/%s/%s/%q", d.Name.Tenant, c.signing, d.ID, at, got.Payload)
			if !c.signed {
				want = ""
			}
			if signature := got.Headers["webhook-signature"]; signature != want {
				t.Errorf("the signature is %q, and not %q", signature, want)
			}
			if c.signed && (got.Headers["webhook-id"] != d.ID.String() || got.Headers["webhook-timestamp"] != at) {
				t.Errorf("the headers are %v", got.Headers)
			}
		})
	}
}
