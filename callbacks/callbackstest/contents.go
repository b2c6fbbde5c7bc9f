package callbackstest

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
)

func testPayload(t *testing.T, s suite) {
	for name, payload := range map[string]string{
		"null":             `null`,
		"false":            `false`,
		"empty string":     `""`,
		"empty object":     `{}`,
		"order and spaces": "{ \"b\" : 1,\n\t\"a\":\r\n [ 2 , 3 ] }",
		"large numbers": `{"n":12345678901234567890123456789,` +
			`"f":0.1000000000000000055511151231257827,"e":1E+400,"z":-0.0}`,
		"HTML characters":   `"<script>&amp;</script>"`,
		"escapes":           `"\u003c \u00e9 \/ \ud83d\ude00 \u0000 \u2028"`,
		"unicode":           "\"Grüße, 世界 \U0001f600 \u2028\u2029\u007f\"",
		"looks like a form": `"a=b&c=d%20+"`,
		"100 KiB":           `"` + strings.Repeat("Zürich, ", 100<<10/9) + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(payload)
			if err := s.Sender.Validate(d.Data); err != nil {
				t.Fatalf("the data is not accepted: %v", err)
			}
			s.deliver(ctx, t, d)
			if got := s.Await(ctx, t, d.ID).Payload; got != payload {
				t.Errorf("the receiver got\n%.200q, and not\n%.200q", got, payload)
			}
		})
	}
}

// A step's own payload takes the place of the callback's, which may then be left out.
func testStepPayload(t *testing.T, s suite) {
	for name, payload := range map[string]string{
		"null":            `null`,
		"text":            `"{ 'any': 'thing' }"`,
		"empty string":    `""`,
		"odd white space": "[ 1 ,\n2.50 ]",
		"unicode":         `{"ü":"世界"}`,
	} {
		for _, data := range []struct {
			name string
			data []byte
		}{{"over a payload", s.Data(`{"of": "the callback"}`)}, {"over none", s.withoutPayload(t)}} {
			t.Run(name+" "+data.name, func(t *testing.T) {
				ctx := limited(t)
				d := s.delivery(`{}`)
				d.Data = data.data
				d.Payload = []byte(payload)
				s.deliver(ctx, t, d)
				got := s.Await(ctx, t, d.ID)
				if got.Payload != payload || got.ContentType != "application/json" {
					t.Errorf("the receiver got %q of type %q, and not %q of type application/json",
						got.Payload, got.ContentType, payload)
				}
			})
		}
	}
}

// A payload may be left out. The delivery is empty then, and of no type.
func testNoPayload(t *testing.T, s suite) {
	ctx := limited(t)
	d := s.delivery(`{}`)
	d.Data = s.withoutPayload(t)
	if err := s.Sender.Validate(d.Data); err != nil {
		t.Fatalf("the data is not accepted: %v", err)
	}
	s.deliver(ctx, t, d)
	if got := s.Await(ctx, t, d.ID); got.Payload != "" || got.ContentType != "" {
		t.Errorf("the receiver got %q of type %q, and not nothing of no type", got.Payload, got.ContentType)
	}
}

// Receivers get the step, and the subscriber if there is one; [testEnvelope] tests deliveries without a sequence.
func testPart(t *testing.T, s suite) {
	const object = `{"id":7,"name":"Zoë \"Z\"","tags":[1.50,null]}`
	for _, part := range []struct {
		name             string
		part             job.Part
		step, subscriber string
	}{
		{"no subscribers", job.Part{Step: 1}, "1", NotTold},
		{"the first step", job.Part{Step: 0}, "0", NotTold},
		{"a number", job.Part{Step: 12, Subscriber: "20000"}, "12", "20000"},
		{"an id", job.Part{Step: 0, Subscriber: "user@example.com"}, "0", "user@example.com"},
		{"not ASCII", job.Part{Step: 3, Subscriber: "Grüße, 世界 \U0001f514"}, "3", "Grüße, 世界 \U0001f514"},
		{"percent", job.Part{Step: 3, Subscriber: "100%25 %"}, "3", "100%25 %"},
		{"plus and slash", job.Part{Step: 3, Subscriber: "a+b/c"}, "3", "a+b/c"},
		{"spaces at the ends", job.Part{Step: 3, Subscriber: " a  b "}, "3", " a  b "},
		{"an object", job.Part{Step: 5, Subscriber: object}, "5", object},
		{"a long one", job.Part{Step: 99999, Subscriber: strings.Repeat("ü", 512)}, "99999", strings.Repeat("ü", 512)},
	} {
		t.Run(part.name, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{}`)
			d.Part = &part.part
			s.deliver(ctx, t, d)
			if got := s.Await(ctx, t, d.ID); got.Step != part.step || got.Subscriber != part.subscriber {
				t.Errorf("the receiver was told step %q and subscriber %q, and not %q and %q",
					got.Step, got.Subscriber, part.step, part.subscriber)
			}
		})
	}
}

func testTenant(t *testing.T, s suite) {
	longest := strings.Repeat("x", job.MaxTenantBytes)
	for tenant, want := range map[string]string{
		job.DefaultTenant: NotTold, "Acme_Corp-2.eu": "Acme_Corp-2.eu", "Default": "Default", longest: longest,
	} {
		t.Run(tenant, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{}`)
			d.Name.Tenant = tenant
			s.deliver(ctx, t, d)
			if got := s.Await(ctx, t, d.ID); got.Tenant != want || got.Key != d.Name.Key {
				t.Errorf("the receiver was told tenant %q and key %q, and not %q and %q", got.Tenant, got.Key, want, d.Name.Key)
			}
		})
	}
}

func testEnvelope(t *testing.T, s suite) {
	keys := []string{
		"plain", "a+b/c", "%", "%41", "100%25", ".", "..", " ", " both ends ", "two  spaces", "emoji \U0001f514", "\"quotes'",
		"a;b,c=d", "\\", "é", "e\u0301", "\u00a0", "\u2028", "-", strings.Repeat("ü", 127), "a?b#c&d",
	}
	for i, key := range keys {
		t.Run(key, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{}`)
			d.Name.Key = key
			d.Timestamp = instant.Add(time.Duration(i) * time.Millisecond)
			d.Attempt = i*i*10 + 1
			d.SentAt = d.SentAt.Add(time.Duration(i) * time.Hour)
			s.deliver(ctx, t, d)
			want := Received{
				ID:        d.ID.String(),
				Key:       key,
				Timestamp: job.FormatTime(d.Timestamp),
				Attempt:   d.Attempt,
				SentAt:    d.SentAt.Truncate(time.Second),
				Payload:   `{}`,

				ContentType: "application/json",
				Tenant:      NotTold,
				Step:        NotTold,
				Subscriber:  NotTold,
			}
			got := s.Await(ctx, t, d.ID)
			got.SentAt = got.SentAt.UTC()
			if want.Headers = got.Headers; !reflect.DeepEqual(got, want) {
				t.Errorf("the receiver got\n%+v, and not\n%+v", got, want)
			}
		})
	}
}

func (s suite) withoutPayload(t *testing.T) []byte {
	t.Helper()
	return []byte(s.edited(t, func(members map[string]jsontext.Value) { delete(members, "payload") }))
}
