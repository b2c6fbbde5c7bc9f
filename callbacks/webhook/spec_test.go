package webhook_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/openapi"
	"github.com/carillon-scheduler/carillon/secrets"
)

// TestDeliveriesAreAsSpecified compares deliveries with the specification's webhook: each has all that is required, and
// no header of ours that is not specified.
func TestDeliveriesAreAsSpecified(t *testing.T) {
	spec, err := openapi3.NewLoader().LoadFromData(openapi.YAML)
	if err != nil {
		t.Fatal(err)
	}
	operation := spec.Webhooks["delivery"].Post
	var known []string
	for _, p := range operation.Parameters {
		known = append(known, http.CanonicalHeaderKey(p.Value.Name))
	}
	told := map[string]bool{}
	requests := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(body))
		requests <- req.Clone(context.Background())
	}))
	defer server.Close()
	sender := newSender(t, webhook.Options{})
	vault := newSecrets(t)
	for _, overlap := range []bool{false, true} {
		var err error
		if overlap {
			_, _, err = vault.Rotate(t.Context(), "acme", "default", "", time.Hour, instant)
		} else {
			_, _, err = vault.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{Ed25519: true}, instant)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, payload := range []string{`{"user": 1}`, `[1,"a"]`, `null`, ``} {
		for _, envelope := range []job.Envelope{job.EnvelopeNone, job.EnvelopeStructured, job.EnvelopeBinary} {
			for _, part := range []*job.Part{nil, {Step: 2}, {Step: 0, Subscriber: "Zoë 1%"}} {
				d := delivery(dataOf(server.URL, payload))
				if payload == "" {
					d.Data = []byte(`{"url":"` + server.URL + `"}`)
				}
				d.Envelope, d.Part, d.Name.Tenant = envelope, part, "acme"
				d.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,a=1"
				if part != nil {
					d.Secrets = vault
				}
				if err := sender.Send(t.Context(), d); err != nil {
					t.Fatal(err)
				}
				got := <-requests
				for name := range got.Header {
					told[name] = true
					if ours(name) && !slices.Contains(known, name) {
						t.Errorf("the specification does not know the header %s", name)
					}
				}
				if err := openapi3filter.ValidateRequest(t.Context(), &openapi3filter.RequestValidationInput{
					Request: got,
					Route:   &routers.Route{Spec: spec, Path: "/", PathItem: spec.Webhooks["delivery"], Method: http.MethodPost, Operation: operation},
				}); err != nil {
					t.Errorf("%s in the envelope %q: %v", payload, envelope, err)
				}
			}
		}
	}
	for _, name := range known {
		if !told[name] {
			t.Errorf("the specification tells of the header %s, which receivers are not sent", name)
		}
	}
}

// ours reports whether Carillon makes a header, rather than HTTP.
func ours(name string) bool {
	return strings.HasPrefix(name, "Carillon-") || strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "Ce-") ||
		strings.HasPrefix(name, "Trace")
}
