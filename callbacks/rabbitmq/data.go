package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// callback is the callback data of a job.
type callback struct {
	Queue      string                    `json:"queue" validate:"maxbytes=255"`
	Exchange   string                    `json:"exchange" validate:"maxbytes=255"`
	RoutingKey string                    `json:"routingKey" validate:"maxbytes=255"`
	Headers    map[string]jsontext.Value `json:"headers"`
	Persistent *bool                     `json:"persistent"`
	Payload    jsontext.Value            `json:"payload"` // nil if there is none
}

// Bounds of the protocol. Names are "short strings" with a length of one byte. All properties of a message must fit
// into one frame, which RabbitMQ bounds at 128 KiB; a larger frame ends the connection.
const (
	maxNameBytes    = 255
	maxHeadersBytes = 32 << 10
)

// validate checks callback data. Valid data can be published without harm to other messages.
func validate(data []byte) error {
	_, err := callbacks.Parse[callback](data)
	return err
}

// Check implements [job.Checker].
func (c callback) Check(invalid *job.Invalid) {
	job.CheckTags(c, invalid)
	switch {
	case c.Queue == "" && c.Exchange == "":
		invalid.Add("/queue", "is required, or exchange with routingKey in its place")
	case c.Queue != "" && c.Exchange != "":
		invalid.Add("/exchange", "can't be given together with queue; give queue alone, or exchange with routingKey")
	case c.Queue != "" && c.RoutingKey != "":
		invalid.Add("/routingKey", "goes with exchange; queue needs none")
	}
	checkHeaders(c.Headers, invalid)
}

// checkHeaders notes the headers that can't be sent.
func checkHeaders(headers map[string]jsontext.Value, invalid *job.Invalid) {
	names := make([]string, 0, len(headers))
	size := 0
	for name, value := range headers {
		names = append(names, name)
		size += len(name) + len(value)
	}
	if size > maxHeadersBytes {
		invalid.Add("/headers", fmt.Sprintf("are %d bytes; at most %d are allowed", size, maxHeadersBytes))
	}
	slices.Sort(names)
	for _, name := range names {
		pointer := job.Pointer("headers", name)
		switch {
		case name == "" || len(name) > maxNameBytes:
			invalid.Add(pointer, fmt.Sprintf("must have a name of 1 to %d bytes", maxNameBytes))
		case strings.HasPrefix(strings.ToLower(name), "carillon-"):
			invalid.Add(pointer, "is set by Carillon; leave it out")
		case name == "CC" || name == "BCC": // lists of routing keys: anything else closes the channel
			invalid.Add(pointer, "is read by RabbitMQ itself; bind the queues to an exchange instead")
		case headers[name].Kind() == jsontext.KindBeginObject:
			checkReference(headers[name], pointer, invalid)
		default:
			if _, err := headerValue(headers[name]); err != nil {
				invalid.Add(pointer, err.Error())
			}
		}
	}
}

// checkReference adds the faults of a reference to a secret.
func checkReference(v jsontext.Value, pointer string, invalid *job.Invalid) {
	_, err := job.Parse[reference](v)
	if wrong, ok := errors.AsType[*job.Invalid](err); ok {
		for _, f := range wrong.Under(pointer).Fields {
			invalid.Add(f.Pointer, f.Message)
		}
	}
}

// reference is a document that is nothing but a reference to a secret.
type reference struct{ callbacks.Text }

// Check implements [job.Checker].
func (r reference) Check(invalid *job.Invalid) { r.Text.Check("", invalid) }

// headerText reads a reference to a secret.
func headerText(v jsontext.Value) (callbacks.Text, error) { return job.ParseTrusted[callbacks.Text](v) }

// joinedValue returns a header's value, and the secret that it has been joined with, if it refers to one.
func joinedValue(
	ctx context.Context, s *Sender, d *callbacks.Delivery, v jsontext.Value,
) (value any, secret string, err error) {
	if v.Kind() != jsontext.KindBeginObject {
		value, err = headerValue(v)
		return value, "", err
	}
	text, err := headerText(v)
	if err != nil {
		return nil, "", err
	}
	return d.Join(ctx, s, text)
}

// headerValue turns a header's value into AMQP's type for it: a long string, a boolean, a 64-bit integer for a number
// written as one, else a double.
func headerValue(v jsontext.Value) (any, error) {
	switch v.Kind() {
	case '"':
		var s string
		err := json.Unmarshal(v, &s)
		return s, err
	case 't':
		return true, nil
	case 'f':
		return false, nil
	case '0':
		if text := string(v); !strings.ContainsAny(text, ".eE") {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("must be a whole number from %d to %d; give a larger one as a string",
					math.MinInt64, math.MaxInt64)
			}
			return n, nil
		}
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return nil, errors.New("must be a number that a double can hold; give another as a string")
		}
		return f, nil
	default:
		return nil, errors.New(`must be a string, a number, a boolean, or an object that refers to a secret, such as ` +
			`{"secret": "name"}`)
	}
}

// target returns the exchange and the routing key. The default exchange delivers to the queue that the routing key
// names.
func (c callback) target() (exchange, routingKey string) {
	if c.Queue != "" {
		return "", c.Queue
	}
	return c.Exchange, c.RoutingKey
}

// granted returns the pointer and the name of the queue or the exchange, in the form of [Options.Allow].
func (c callback) granted() (pointer, name string) {
	if c.Queue != "" {
		return "/queue", "queue:" + c.Queue
	}
	return "/exchange", "exchange:" + c.Exchange
}

// deliveryMode returns persistent, unless the client chose transient.
func (c callback) deliveryMode() uint8 {
	if c.Persistent != nil && !*c.Persistent {
		return amqp.Transient
	}
	return amqp.Persistent
}
