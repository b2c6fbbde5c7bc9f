package callbacks

import (
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

// Message is the content of a delivery: the payload, in the envelope that its job asks for.
type Message struct {
	// ContentType is the content type of the body; empty if there is no body. A job's own headers may override it, but not
	// for a structured event, which receivers would not recognize.
	ContentType string
	// Body is nil if there is none.
	Body []byte
	// Attributes are the attributes of an event in binary mode, without datacontenttype, which is the ContentType there.
	// The sender makes each a header, named by the protocol's binding to CloudEvents. They win over the job's own headers,
	// none of which may be a datacontenttype.
	Attributes []Attribute
}

// Attribute is an attribute of a CloudEvent. Its value is any text without control characters.
type Attribute struct {
	Name  string
	Value string
	// Integer reports that the value is a whole number, for protocols and formats that distinguish numbers from texts.
	Integer bool
}

const (
	typeJSON       = "application/json"
	typeStructured = "application/cloudevents+json"
)

// Message makes the delivery's message. Payload is the one in Data, a JSON value, or nil if that has none.
func (d *Delivery) Message(payload []byte) Message {
	if d.Payload != nil {
		payload = d.Payload
	}
	m := Message{Body: payload}
	if payload != nil {
		m.ContentType = typeJSON
	}
	switch d.Envelope {
	case job.EnvelopeNone:
	case job.EnvelopeStructured:
		return Message{ContentType: typeStructured, Body: d.structured(payload)}
	case job.EnvelopeBinary:
		m.Attributes = d.attributes()
	}
	return m
}

// attributes returns the attributes of CloudEvents 1.0 and of two extensions, which sequences have. The source of an
// event of the service is the tenant; its subject comes from the event.
func (d *Delivery) attributes() []Attribute {
	source, kind := "/"+url.PathEscape(d.Name.Tenant), "carillon.occurrence"
	if d.Event != nil {
		kind = string(d.Event.Type)
	} else {
		source += "/" + url.PathEscape(d.Name.Key)
	}
	all := make([]Attribute, 0, 7)
	all = append(all,
		Attribute{Name: "specversion", Value: "1.0"},
		Attribute{Name: "id", Value: d.ID.String()},
		Attribute{Name: "source", Value: source},
		Attribute{Name: "type", Value: kind},
		Attribute{Name: "time", Value: job.FormatTime(d.Timestamp)},
	)
	if d.Event != nil && d.Event.Subject != "" {
		all = append(all, Attribute{Name: "subject", Value: d.Event.Subject})
	}
	if d.Part != nil {
		all = append(all, Attribute{Name: "carillonstep", Value: strconv.Itoa(d.Part.Step), Integer: true})
		if d.Part.Subscriber != "" {
			all = append(all, Attribute{Name: "carillonsubscriber", Value: d.Part.Subscriber})
		}
	}
	return all
}

// structured writes the event as JSON. The payload stands in it byte for byte.
func (d *Delivery) structured(payload []byte) []byte {
	b := make([]byte, 0, 320+len(payload))
	for i, a := range d.attributes() {
		b = append(b, "{,"[min(i, 1)], '"')
		b = append(append(b, a.Name...), `":`...)
		if a.Integer {
			b = append(b, a.Value...)
			continue
		}
		b, _ = jsontext.AppendQuote(b, a.Value) // fails only for invalid UTF-8, which no key and no subscriber has
	}
	if payload != nil {
		b = append(append(b, `,"datacontenttype":"`+typeJSON+`","data":`...), payload...)
	}
	return append(b, '}')
}
