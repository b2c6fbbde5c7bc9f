package webhook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// request is the request of an attempt.
type request struct {
	method  string
	url     *url.URL
	fields  []field // of the header; each name is there once, in canonical form
	body    []byte
	secrets []string // the named ones in it
}

type field struct{ name, value string }

// set sets the value of a field. The name is in canonical form.
func (r *request) set(name, value string) {
	for i := range r.fields {
		if r.fields[i].name == name {
			r.fields[i].value = value
			return
		}
	}
	r.fields = append(r.fields, field{name, value})
}

// newRequest makes the request of an attempt. The error is a [*callbacks.Failure] if a secret is missing.
func (s *Sender) newRequest(ctx context.Context, d *callbacks.Delivery) (*request, error) {
	c, err := job.ParseTrusted[callback](d.Data)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	m := d.Message(c.Payload)
	signature, err := d.Signature(ctx, m.Body)
	if err != nil {
		return nil, err
	}
	const own = 12 // the most that are set here
	r := &request{
		method: cmp.Or(c.Method, http.MethodPost), url: target, body: m.Body,
		fields: make([]field, 0, own+len(c.Headers)+len(m.Attributes)),
	}
	if m.ContentType != "" {
		r.set("Content-Type", m.ContentType)
	}
	r.set("User-Agent", s.userAgent)
	for name, text := range c.Headers {
		value, secret, err := d.Join(ctx, s, text)
		if err != nil {
			return nil, err
		}
		if secret != "" {
			r.secrets = append(r.secrets, secret)
		}
		r.set(http.CanonicalHeaderKey(name), value)
	}
	if d.Envelope == job.EnvelopeStructured {
		r.set("Content-Type", m.ContentType)
	}
	if d.Envelope == job.EnvelopeBinary { // CloudEvents forbids it: the Content-Type is it
		r.fields = slices.DeleteFunc(r.fields, func(f field) bool { return f.name == "Ce-Datacontenttype" })
	}
	for _, trace := range callbacks.TraceHeaders(d, c.Headers) {
		r.set(http.CanonicalHeaderKey(trace.Name), trace.Value)
	}
	for _, a := range m.Attributes {
		// CloudEvents requires this escape too
		r.set(http.CanonicalHeaderKey("Ce-"+a.Name), strings.ReplaceAll(escape(a.Value), `"`, "%22"))
	}
	r.set("Webhook-Id", d.ID.String())
	r.set("Webhook-Timestamp", strconv.FormatInt(d.SentAt.Unix(), 10))
	if signature != "" {
		r.set("Webhook-Signature", signature)
	}
	r.set("Carillon-Key", escape(d.Name.Key))
	if d.Name.Tenant != job.DefaultTenant {
		r.set("Carillon-Tenant", d.Name.Tenant)
	}
	r.set("Carillon-Timestamp", job.FormatTime(d.Timestamp))
	r.set("Carillon-Attempt", strconv.Itoa(d.Attempt))
	if d.Part != nil {
		r.set("Carillon-Step", strconv.Itoa(d.Part.Step))
		if d.Part.Subscriber != "" {
			r.set("Carillon-Subscriber", escape(d.Part.Subscriber))
		}
	}
	if user := target.User; user != nil {
		password, _ := user.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		r.set("Authorization", "Basic "+credentials)
	}
	return r, nil
}

// escape percent-encodes all but visible ASCII, and the percent sign itself, for a header.
func escape(text string) string {
	const hex = "0123456789ABCDEF"
	plain := func(c byte) bool { return '!' <= c && c <= '~' && c != '%' }
	i := 0
	for i < len(text) && plain(text[i]) {
		i++
	}
	if i == len(text) {
		return text
	}
	b := make([]byte, i, 3*len(text))
	copy(b, text)
	for ; i < len(text); i++ {
		if c := text[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// of returns the request for net/http.
func (r *request) of(ctx context.Context) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, "", bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = r.url, r.url.Host
	for _, f := range r.fields {
		req.Header[f.name] = []string{f.value}
	}
	// The receiver may close an idle connection just when it is used again. With this key the transport sends the
	// request once more on another connection, which the delivery id makes harmless. An empty list isn't sent.
	if _, own := req.Header["Idempotency-Key"]; !own {
		req.Header["Idempotency-Key"] = []string{}
	}
	return req, nil
}

// appendTo appends the request as it is sent over HTTP/1.1. The error does not quote a value, which may be a secret.
func (r *request) appendTo(text []byte) ([]byte, error) {
	host, err := httpguts.PunycodeHostPort(r.url.Host)
	if err != nil {
		return nil, err
	}
	text = append(append(text, r.method...), ' ')
	text = append(append(text, r.url.RequestURI()...), " HTTP/1.1\r\nHost: "...)
	text = append(text, withoutZone(host)...)
	for _, f := range r.fields {
		if !httpguts.ValidHeaderFieldValue(f.value) {
			return nil, fmt.Errorf("the value of the header %s can't be sent", f.name)
		}
		text = append(append(text, "\r\n"...), f.name...)
		text = append(append(text, ": "...), f.value...)
	}
	text = strconv.AppendInt(append(text, "\r\nContent-Length: "...), int64(len(r.body)), 10)
	return append(append(text, "\r\n\r\n"...), r.body...), nil
}

// withoutZone returns a host without the zone of an IPv6 address, which has a meaning on this machine only.
func withoutZone(host string) string {
	zone, end := strings.IndexByte(host, '%'), strings.LastIndexByte(host, ']')
	if zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}
