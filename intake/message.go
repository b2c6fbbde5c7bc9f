package intake

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// Message is one message of a broker.
type Message struct {
	Body []byte
	// ContentType and ContentEncoding are empty if the message has none.
	ContentType, ContentEncoding string
	// Headers are the headers with texts, by their names in lower case.
	Headers map[string]string
	// Key is the key by which the broker keeps messages in order; empty if it has none.
	Key string
	// Repeated reports that the message may have been taken before.
	Repeated bool
	// Published is the time at which the client published the message; zero if unknown.
	Published time.Time
	// Identity distinguishes the message from others that were published at the same time; empty if it has none.
	Identity string
}

// The headers of a message that select the operation and its job.
const (
	operationHeader = "carillon-operation"
	keyHeader       = "carillon-key"
	tenantHeader    = "carillon-tenant"
)

// put is the operation of a message that names none.
const put = "put"

// operations has the requests of the operations that name their job by a key.
var operations = map[string]struct {
	method, suffix string
	body           bool
}{
	put:        {http.MethodPut, "", true},
	"patch":    {http.MethodPatch, "", true},
	"cancel":   {http.MethodDelete, "", false},
	"pause":    {http.MethodPost, "/pause", false},
	"resume":   {http.MethodPost, "/resume", false},
	"trigger":  {http.MethodPost, "/trigger", false},
	"check-in": {http.MethodPost, "/check-in", true},
}

const operationRule = "must be put, patch, cancel, pause, resume, trigger or check-in; without it, the message puts " +
	"a job"

// request is the request of a message.
type request struct {
	// operation is a key of [operations].
	operation string
	// key is the job's key; empty for a put whose body has it. Such puts are made many at once.
	key  string
	body []byte
	from origin
}

// origin describes the way of a message.
type origin struct {
	repeated  bool
	published time.Time
	identity  string
	trace     job.Trace
}

// batched reports whether the request can be an item of a batch.
func (r *request) batched() bool { return r.operation == put && r.key == "" }

// path returns the path of the request for a single job.
func (r *request) path() string {
	key := url.PathEscape(r.key)
	if key == "." || key == ".." {
		key = strings.ReplaceAll(key, ".", "%2E")
	}
	return "/v1/jobs/" + key + operations[r.operation].suffix
}

// read returns the request of a message, or the problem with it.
func (m *Message) read(tenant string) (*request, *Problem) {
	event, wrong := m.event()
	if wrong != nil {
		return nil, wrong
	}
	r := &request{body: event.data, operation: m.Headers[operationHeader], key: m.Headers[keyHeader]}
	if r.operation == "" {
		r.operation = event.operation
	}
	if r.operation == "" {
		r.operation = put
	}
	if _, known := operations[r.operation]; !known {
		return nil, invalidHeader(operationHeader, operationRule)
	}
	if named, ok := m.Headers[tenantHeader]; ok && named != tenant {
		return nil, invalidHeader(tenantHeader, fmt.Sprintf("must be left out, or be %q: messages that come this way are "+
			"that tenant's", tenant))
	}
	if r.key == "" && r.operation != put {
		if r.key = event.subject; r.key == "" {
			r.key = m.Key
		}
	}
	if r.key == "" && r.operation != put {
		return nil, invalidHeader(keyHeader, "is required for the operation "+r.operation+": it names the job")
	}
	if wrong := checkContent(r.operation, event.contentType, m.ContentEncoding); wrong != nil {
		return nil, wrong
	}
	if operations[r.operation].body && r.operation != "check-in" && len(bytes.TrimSpace(r.body)) == 0 {
		return nil, newProblem(http.StatusBadRequest, "the message is empty; it must have a JSON document")
	}
	r.from = origin{m.Repeated, m.Published, cmp.Or(m.Identity, event.identity), m.trace()}
	if r.from.published.IsZero() {
		r.from.published = event.time
	}
	return r, nil
}

// checkContent checks the type and the encoding of a document.
func checkContent(operation, contentType, encoding string) *Problem {
	if encoding != "" && !strings.EqualFold(encoding, "identity") {
		return newProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("the content encoding %q is not supported; send the body without it", encoding))
	}
	accepted := []string{"application/json"}
	if operation == "patch" {
		accepted = append(accepted, "application/merge-patch+json")
	}
	media, _, err := mime.ParseMediaType(contentType)
	if contentType == "" || !operations[operation].body || err == nil && slices.Contains(accepted, media) {
		return nil
	}
	return newProblem(http.StatusUnsupportedMediaType,
		fmt.Sprintf("the content type must be %s, not %q", strings.Join(accepted, " or "), contentType))
}

// trace returns the trace context in the headers.
func (m *Message) trace() job.Trace {
	parent := m.Headers["traceparent"]
	if parent == "" {
		return ""
	}
	return job.TraceOf(job.RequestSpan(http.Header{
		textproto.CanonicalMIMEHeaderKey("traceparent"): {parent},
		textproto.CanonicalMIMEHeaderKey("tracestate"):  {m.Headers["tracestate"]},
	}))
}

// event is the content of a message, in a CloudEvents envelope or without one.
type event struct {
	data               []byte
	contentType        string
	operation, subject string
	identity           string
	time               time.Time
}

// structured is a CloudEvent as JSON. Other attributes are allowed.
type structured struct {
	SpecVersion     string         `json:"specversion"`
	ID              string         `json:"id"`
	Source          string         `json:"source"`
	Type            string         `json:"type"`
	Subject         string         `json:"subject"`
	Time            string         `json:"time"`
	DataContentType string         `json:"datacontenttype"`
	Operation       string         `json:"operation"`
	Data            jsontext.Value `json:"data"`
	DataBase64      *string        `json:"data_base64"`
}

const eventMedia = "application/cloudevents+json"

// event takes the message out of its envelope. In binary mode, the attributes are headers and the body is the data.
func (m *Message) event() (event, *Problem) {
	media, _, _ := mime.ParseMediaType(m.ContentType)
	if media != eventMedia {
		e := event{
			data: m.Body, contentType: m.ContentType, operation: m.attribute("operation"), subject: m.attribute("subject"),
			identity: identity(m.attribute("source"), m.attribute("id")),
		}
		return e, e.at(m.attribute("specversion"), m.attribute("time"))
	}
	var s structured
	if err := json.Unmarshal(m.Body, &s); err != nil {
		return event{}, newProblem(http.StatusBadRequest, "the message is not a CloudEvent as JSON: "+err.Error())
	}
	for _, required := range [][2]string{
		{"specversion", s.SpecVersion}, {"id", s.ID}, {"source", s.Source}, {"type", s.Type},
	} {
		if required[1] == "" {
			return event{}, newProblem(http.StatusUnprocessableEntity, "the CloudEvent has no "+required[0])
		}
	}
	e := event{
		data: s.Data, contentType: s.DataContentType, operation: s.Operation, subject: s.Subject,
		identity: identity(s.Source, s.ID),
	}
	if s.DataBase64 != nil {
		data, err := base64.StdEncoding.DecodeString(*s.DataBase64)
		if err != nil || s.Data != nil {
			return event{}, newProblem(http.StatusUnprocessableEntity,
				"the CloudEvent must have data, or data_base64 in base64")
		}
		e.data = data
	}
	return e, e.at(s.SpecVersion, s.Time)
}

// identity returns the identity of a CloudEvent: its source and its id.
func identity(source, id string) string {
	if id == "" {
		return ""
	}
	return source + " " + id
}

// at checks the version of the specification, and sets the time, if there are any.
func (e *event) at(version, text string) *Problem {
	if version != "" && version != "1.0" {
		return newProblem(http.StatusUnprocessableEntity,
			fmt.Sprintf("the CloudEvent has the specversion %q; only 1.0 is supported", version))
	}
	if text == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return newProblem(http.StatusUnprocessableEntity, "the CloudEvent's time must be a date and time by RFC 3339")
	}
	e.time = at
	return nil
}

// attribute returns an attribute of a CloudEvent in binary mode, by the bindings for AMQP and for Kafka.
func (m *Message) attribute(name string) string {
	for _, prefix := range []string{"cloudevents:", "cloudevents_", "ce_", "ce-"} {
		if value, ok := m.Headers[prefix+name]; ok {
			return value
		}
	}
	return ""
}
