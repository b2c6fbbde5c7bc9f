package callbacks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// Text is a text in callback data, such as the value of a header: a JSON string; or an object that refers to a secret,
// as in {"secret": "name", "prefix": "Bearer "}, whose value is joined only when a delivery is sent.
type Text struct {
	literal string
	reference
	kind jsontext.Kind // of the JSON value
}

type reference struct {
	Secret string `json:"secret"`
	Prefix string `json:"prefix"`
}

// UnmarshalJSONFrom reads either form. Null is an empty text, as it is for a string.
func (t *Text) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*t = Text{kind: d.PeekKind()}
	switch t.kind {
	case jsontext.KindString, jsontext.KindNull:
		return json.UnmarshalDecode(d, &t.literal)
	case jsontext.KindBeginObject:
		return json.UnmarshalDecode(d, &t.reference)
	default:
		return d.SkipValue()
	}
}

// Refers reports whether the text refers to a secret.
func (t Text) Refers() bool { return t.Secret != "" }

// Literal returns the text itself; empty if it refers to a secret.
func (t Text) Literal() string { return t.literal }

// Check notes the faults of a reference at a pointer, or that it is neither a string nor a reference.
func (t Text) Check(pointer string, invalid *job.Invalid) {
	switch {
	case t.kind == jsontext.KindString, t.kind == jsontext.KindNull:
	case t.kind != jsontext.KindBeginObject:
		invalid.Add(pointer, `must be a string, or an object that refers to a secret, such as {"secret": "name"}`)
	case t.Secret == "":
		invalid.Add(pointer+"/secret", "is required: the name of a secret")
	case !job.ValidSecretName(t.Secret):
		invalid.Add(pointer+"/secret", fmt.Sprintf("must be the name of a secret: 1 to %d letters, digits, dots, "+
			"underscores and hyphens", job.MaxSecretName))
	case strings.ContainsFunc(t.Prefix, func(r rune) bool { return r < ' ' || r > '~' }), strings.HasPrefix(t.Prefix, " "):
		invalid.Add(pointer+"/prefix", "must be printable ASCII that does not begin with a space")
	}
}

// Reference is a secret that callback data refer to.
type Reference struct {
	// Pointer is the JSON Pointer to its name, in the data.
	Pointer string
	Name    string
}

// Referrer is a [Sender] whose callback data may refer to secrets.
type Referrer interface {
	Sender

	// References returns the secrets that callback data refer to. Data were accepted by Validate.
	References(data []byte) []Reference
}

// HeaderReferences returns the references in the member headers of callback data, in the order of their names.
func HeaderReferences(headers map[string]Text) (all []Reference) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if t := headers[name]; t.Refers() {
			all = append(all, Reference{job.Pointer("headers", name, "secret"), t.Secret})
		}
	}
	return all
}

// References returns the secrets that a callback refers to, with pointers from the job's root. The callback was
// accepted by Validate.
func (r *Registry) References(c job.Callback) []Reference {
	referrer, ok := r.senders[c.Type].(Referrer)
	if !ok || !bytes.Contains(c.Data, []byte(`"secret"`)) && !bytes.ContainsRune(c.Data, '\\') {
		return nil // most data need not be parsed to see that
	}
	all := referrer.References(c.Data)
	for i := range all {
		all[i].Pointer = "/callback/data" + all[i].Pointer
	}
	return all
}

// errNoSecrets is the error of a delivery that needs secrets on a replica without any.
var errNoSecrets = errors.New("this replica has no secrets")

// unsent returns the error of a delivery that lacks a secret. It is retried by the job's retry policy.
func unsent(err error) error {
	return &Failure{Err: fmt.Errorf("nothing was sent: %w", err), Blame: BlameNobody}
}

// Join returns the text with the secret that it refers to. The error is a [*Failure].
func (d *Delivery) Join(ctx context.Context, sender Sender, t Text) (joined, secret string, err error) {
	if !t.Refers() {
		return t.literal, "", nil
	}
	if d.Secrets == nil {
		return "", "", unsent(errNoSecrets)
	}
	to := sender.Type() + " " + sender.Destination(d.Data)
	value, err := d.Secrets.Secret(ctx, d.Name.Tenant, t.Secret, to)
	if err != nil {
		return "", "", unsent(err)
	}
	return t.Prefix + value, value, nil
}

// Signature returns the value of the header webhook-signature for a body, made for this attempt by the delivery's ID
// and SentAt; empty if the delivery is not signed. The error is a [*Failure].
func (d *Delivery) Signature(ctx context.Context, body []byte) (string, error) {
	if d.Signing == job.NoSigning || d.Secrets == nil && d.Signing == "" {
		return "", nil
	}
	if d.Secrets == nil {
		return "", unsent(errNoSecrets)
	}
	signature, err := d.Secrets.Sign(ctx, d.Name.Tenant, d.Signing, d.ID.String(), d.SentAt, body)
	if err != nil {
		return "", unsent(err)
	}
	return signature, nil
}

// SignatureHeaders returns the headers of Standard Webhooks with which a receiver verifies a body, for senders whose
// messages do not have them anyway; none if the delivery is not signed. The error is a [*Failure].
func (d *Delivery) SignatureHeaders(ctx context.Context, body []byte) ([]Header, error) {
	signature, err := d.Signature(ctx, body)
	if err != nil || signature == "" {
		return nil, err
	}
	return []Header{
		{"webhook-id", d.ID.String()},
		{"webhook-timestamp", strconv.FormatInt(d.SentAt.Unix(), 10)},
		{"webhook-signature", signature},
	}, nil
}
