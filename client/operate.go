package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Selection selects dead letters: exactly one of its fields is set.
type Selection struct {
	Key, Prefix string
	// All selects those of all of the tenant's jobs.
	All bool
}

func (s Selection) query() url.Values {
	q := query("key", s.Key, "prefix", s.Prefix)
	if s.All {
		q.Set("all", "true")
	}
	return q
}

// DeadLetters lists dead letters by instant: those of one job, those of a prefix, or all.
func (c *Client) DeadLetters(ctx context.Context, of Selection) iter.Seq2[DeadLetter, error] {
	of.All = false // a list has all without saying so
	return pages[DeadLetter](ctx, c, request{method: "GET", path: path("dead-letters"), query: of.query(), about: true},
		"items")
}

// RedriveDeadLetter makes a dead letter due at once. If an earlier attempt may have done so, one that is not there is
// no error.
func (c *Client) RedriveDeadLetter(ctx context.Context, id string) error {
	a, err := c.do(ctx, request{method: "POST", path: path("dead-letters", id, "redrive"), about: true}, nil)
	return gone(a, err)
}

// RedriveDeadLetters makes the selected ones due at once, and returns their number. After an attempt whose answer was
// lost, it is the number of those that were left.
func (c *Client) RedriveDeadLetters(ctx context.Context, of Selection) (int, error) {
	out, err := call[struct{ Redriven int }](ctx, c, request{
		method: "POST", path: path("dead-letters", "redrive"), query: of.query(), about: true,
	})
	return out.Redriven, err
}

// DeleteDeadLetter deletes a dead letter for good.
func (c *Client) DeleteDeadLetter(ctx context.Context, id string) error {
	a, err := c.do(ctx, request{method: "DELETE", path: path("dead-letters", id), about: true}, nil)
	return gone(a, err)
}

// DeleteDeadLetters deletes the selected ones for good, and returns their number, as [Client.RedriveDeadLetters] does.
func (c *Client) DeleteDeadLetters(ctx context.Context, of Selection) (int, error) {
	out, err := call[struct{ Deleted int }](ctx, c, request{
		method: "DELETE", path: path("dead-letters"), query: of.query(), about: true,
	})
	return out.Deleted, err
}

// Tenants lists the known tenants by name.
func (c *Client) Tenants(ctx context.Context) iter.Seq2[Tenant, error] {
	return pages[Tenant](ctx, c, request{method: "GET", path: path("tenants")}, "items")
}

// Tenant reads a tenant and its settings.
func (c *Client) Tenant(ctx context.Context, name string) (Tenant, error) {
	return call[Tenant](ctx, c, request{method: "GET", path: path("tenants", name)})
}

// PutTenant replaces all settings of a tenant.
func (c *Client) PutTenant(ctx context.Context, name string, settings TenantSettings) (Tenant, error) {
	return call[Tenant](ctx, c, request{method: "PUT", path: path("tenants", name), body: settings})
}

// ResetTenant gives a tenant the default settings back.
func (c *Client) ResetTenant(ctx context.Context, name string) (Tenant, error) {
	return call[Tenant](ctx, c, request{method: "DELETE", path: path("tenants", name)})
}

// TenantLimits reads a tenant's limits.
func (c *Client) TenantLimits(ctx context.Context, name string) (TenantLimits, error) {
	return call[TenantLimits](ctx, c, request{method: "GET", path: path("tenants", name, "limits")})
}

// PutTenantLimits replaces all limits that a tenant has of its own.
func (c *Client) PutTenantLimits(ctx context.Context, name string, limits Limits) (TenantLimits, error) {
	return call[TenantLimits](ctx, c, request{method: "PUT", path: path("tenants", name, "limits"), body: limits})
}

// ResetTenantLimits gives a tenant the service's limits back.
func (c *Client) ResetTenantLimits(ctx context.Context, name string) (TenantLimits, error) {
	return call[TenantLimits](ctx, c, request{method: "DELETE", path: path("tenants", name, "limits")})
}

// Keys lists API keys by id, without their secrets.
func (c *Client) Keys(ctx context.Context) iter.Seq2[Key, error] {
	return pages[Key](ctx, c, request{method: "GET", path: path("keys")}, "items")
}

// Key reads an API key, without its secret.
func (c *Client) Key(ctx context.Context, id string) (Key, error) {
	return call[Key](ctx, c, request{method: "GET", path: path("keys", id)})
}

// CreateKey creates an API key. The answer has its secret, this once. It is not sent again after a lost answer: a key
// with an unknown secret may then exist, which [Client.Keys] lists.
func (c *Client) CreateKey(ctx context.Context, key NewKey) (Key, error) {
	return call[Key](ctx, c, request{method: "POST", path: path("keys"), body: key, effect: once})
}

// RotateKey gives an API key another secret; the present one is valid for the overlap. It is not sent again after a
// lost answer.
func (c *Client) RotateKey(ctx context.Context, id string, overlap time.Duration) (Key, error) {
	body := map[string]Duration{"overlap": Duration(overlap)}
	return call[Key](ctx, c, request{method: "POST", path: path("keys", id, "rotate"), body: body, effect: once})
}

// PutKeyLimits replaces all limits that an API key has of its own.
func (c *Client) PutKeyLimits(ctx context.Context, id string, limits Limits) (Key, error) {
	return call[Key](ctx, c, request{method: "PUT", path: path("keys", id, "limits"), body: limits})
}

// RevokeKey ends an API key for good.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	a, err := c.do(ctx, request{method: "DELETE", path: path("keys", id)}, nil)
	return gone(a, err)
}

// Secrets lists the named secrets of the tenant, without their values.
func (c *Client) Secrets(ctx context.Context) iter.Seq2[Secret, error] {
	return pages[Secret](ctx, c, request{method: "GET", path: path("secrets"), about: true}, "items")
}

// PutSecret creates or replaces a secret. It may be sent to the destinations, or to any if there are none.
func (c *Client) PutSecret(ctx context.Context, name, value string, destinations ...string) (Secret, error) {
	body := struct {
		Value        string   `json:"value"`
		Destinations []string `json:"destinations,omitempty"`
	}{value, destinations}
	return call[Secret](ctx, c, request{method: "PUT", path: path("secrets", name), body: body, about: true})
}

// DeleteSecret deletes a secret for good.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	a, err := c.do(ctx, request{method: "DELETE", path: path("secrets", name), about: true}, nil)
	return gone(a, err)
}

// SigningSecrets lists the signing secrets of the tenant, with their public keys.
func (c *Client) SigningSecrets(ctx context.Context) iter.Seq2[SigningSecret, error] {
	return pages[SigningSecret](ctx, c, request{method: "GET", path: path("signing-secrets"), about: true}, "items")
}

// CreateSigningSecret creates a signing secret. The answer has it, this once. It is not sent again after a lost answer.
func (c *Client) CreateSigningSecret(ctx context.Context, secret NewSigningSecret) (SigningSecret, error) {
	return call[SigningSecret](ctx, c, request{
		method: "POST", path: path("signing-secrets"), body: secret, about: true, effect: once,
	})
}

// RotateSigningSecret makes a new secret of the name; deliveries are signed with the one before too for the overlap. It
// is not sent again after a lost answer.
func (c *Client) RotateSigningSecret(ctx context.Context, name string, overlap time.Duration) (SigningSecret, error) {
	return call[SigningSecret](ctx, c, request{
		method: "POST", path: path("signing-secrets", name, "rotate"), about: true, effect: once,
		body: map[string]Duration{"overlap": Duration(overlap)},
	})
}

// DeleteSigningSecret deletes a signing secret for good.
func (c *Client) DeleteSigningSecret(ctx context.Context, name string) error {
	a, err := c.do(ctx, request{method: "DELETE", path: path("signing-secrets", name), about: true}, nil)
	return gone(a, err)
}

// Backlog counts the pending occurrences, and lists at most limit tenants and destinations; 0 means 20.
func (c *Client) Backlog(ctx context.Context, limit int) (Backlog, error) {
	return call[Backlog](ctx, c, request{method: "GET", path: path("backlog"), query: query("limit", number(limit))})
}

// Status returns the state of the service.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return call[Status](ctx, c, request{method: "GET", path: path("status")})
}

// Session returns the principal of the client's key, and its permissions.
func (c *Client) Session(ctx context.Context) (Session, error) {
	return call[Session](ctx, c, request{method: "GET", path: path("session")})
}

// Ready returns nil if the replica that answers can do its work, and the warnings about its setup.
func (c *Client) Ready(ctx context.Context) (warnings []string, err error) {
	out, err := call[struct{ Warnings []string }](ctx, c, request{method: "GET", path: "/readyz"})
	return out.Warnings, err
}

// Version returns the version of the replica that answers; empty if it is not known.
func (c *Client) Version(ctx context.Context) (string, error) {
	out, err := call[struct{ Version string }](ctx, c, request{method: "GET", path: "/"})
	return out.Version, err
}

// Specification returns the OpenAPI document of the service, as JSON.
func (c *Client) Specification(ctx context.Context) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, request{method: "GET", path: "/openapi.json"})
}

// JobSchema returns the JSON Schema of jobs in files.
func (c *Client) JobSchema(ctx context.Context) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, request{method: "GET", path: "/schemas/job.json"})
}

// Document makes a request to a path of the API that has no method here, such as "/v1/backlog?limit=1", and returns the
// answer's document. The body is sent as JSON; nil means none. Only a GET is sent again after a lost answer.
func (c *Client) Document(ctx context.Context, method, target string, body any) (json.RawMessage, error) {
	p, q, _ := strings.Cut(target, "?")
	values, err := url.ParseQuery(q)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(p, "/") {
		return nil, errors.New("client: the path must begin with a slash")
	}
	r := request{method: method, path: p, query: values, body: body, about: !aboutSeveral(p), effect: once}
	if method == http.MethodGet {
		r.effect = again
	}
	a, err := c.do(ctx, r, nil)
	return a.body, err
}

// aboutSeveral reports whether a path is about several tenants, and refuses a header that names one.
func aboutSeveral(path string) bool {
	for _, prefix := range []string{
		"/v1/tenants", "/v1/keys", "/v1/backlog", "/v1/forecast", "/v1/status", "/v1/session",
	} {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			return true
		}
	}
	return !strings.HasPrefix(path, "/v1/")
}
