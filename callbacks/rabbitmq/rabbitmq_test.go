package rabbitmq_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

func TestValidate(t *testing.T) {
	sender, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://" + unused(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	for _, b := range bad() {
		t.Run(b.Name, func(t *testing.T) {
			var pointers []string
			if invalid, ok := errors.AsType[*job.Invalid](sender.Validate([]byte(b.Data))); ok {
				for _, f := range invalid.Fields {
					pointers = append(pointers, f.Pointer)
				}
			}
			if !slices.Equal(pointers, b.Pointers) {
				t.Errorf("Validate(%.200s) names %q, want %q", b.Data, pointers, b.Pointers)
			}
		})
	}
	for name, data := range good("q", "e") {
		if err := sender.Validate(data); err != nil {
			t.Errorf("%s: Validate(%.200s) = %v", name, data, err)
		}
	}
}

// A tenant's grants are checked when a job is submitted, and again when it is sent. A refused delivery does not reach a
// broker.
func TestGranted(t *testing.T) {
	var allow callbacks.Grants
	if err := allow.Set("acme=queue:acme.*,acme=exchange:events,*=queue:public"); err != nil {
		t.Fatal(err)
	}
	sender, err := rabbitmq.New(rabbitmq.Options{URL: "amqp://" + unused(t), Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	for _, c := range []struct{ tenant, data, pointer string }{
		{"acme", `{"queue":"acme.mails"}`, ""}, {"acme", `{"queue":"public"}`, ""}, {"other", `{"queue":"public"}`, ""},
		{"acme", `{"exchange":"events","routingKey":"any"}`, ""},
		{"acme", `{"queue":"events"}`, "/queue"}, {"acme", `{"queue":"other.mails"}`, "/queue"}, {"other", `{"queue":"acme.mails"}`, "/queue"},
		{"acme", `{"exchange":"acme.mails","routingKey":"public"}`, "/exchange"}, {"other", `{"exchange":"public"}`, "/exchange"},
	} {
		err := sender.Granted(c.tenant, []byte(c.data))
		if invalid, ok := errors.AsType[*job.Invalid](err); ok != (c.pointer != "") || ok && invalid.Fields[0].Pointer != c.pointer {
			t.Errorf("%s, %s: %v", c.tenant, c.data, err)
		}
		err = sender.Send(t.Context(), callbacks.Delivery{Name: job.Name{Tenant: c.tenant, Key: "k"}, Data: []byte(c.data)})
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || failure.Refused != (c.pointer != "") || failure.Unavailable == failure.Refused {
			t.Errorf("%s, %s: %v", c.tenant, c.data, err)
		}
		if failure.Refused && !strings.Contains(err.Error(), "--rabbitmq-allow") {
			t.Errorf("the error does not name the option: %v", err)
		}
	}
}

func bad() []callbackstest.Bad {
	long := strings.Repeat("ü", 128) // 256 bytes
	header := func(name, value string) string {
		return `{"queue":"q","payload":1,"headers":{` + strconv.Quote(name) + `:` + value + `}}`
	}
	return []callbackstest.Bad{
		{Name: "nowhere to go", Data: `{"payload":1}`, Pointers: []string{"/queue"}},
		{Name: "empty names", Data: `{"queue":"","exchange":"","payload":1}`, Pointers: []string{"/queue"}},
		{Name: "routing key alone", Data: `{"routingKey":"k","payload":1}`, Pointers: []string{"/queue"}},
		{Name: "queue and exchange", Data: `{"queue":"q","exchange":"e","payload":1}`, Pointers: []string{"/exchange"}},
		{Name: "queue and routing key", Data: `{"queue":"q","routingKey":"k","payload":1}`, Pointers: []string{"/routingKey"}},
		{Name: "long queue", Data: `{"queue":"` + long + `","payload":1}`, Pointers: []string{"/queue"}},
		{Name: "long exchange", Data: `{"exchange":"` + long + `","payload":1}`, Pointers: []string{"/exchange"}},
		{Name: "long routing key", Data: `{"exchange":"e","routingKey":"` + long + `","payload":1}`, Pointers: []string{"/routingKey"}},
		{Name: "queue is a number", Data: `{"queue":1,"payload":1}`, Pointers: []string{"/queue"}},
		{Name: "persistent is a string", Data: `{"queue":"q","persistent":"yes","payload":1}`, Pointers: []string{"/persistent"}},
		{Name: "other case", Data: `{"Queue":"q","payload":1}`, Pointers: []string{"/Queue", "/queue"}},
		{Name: "our header", Data: header("carillon-key", `"k"`), Pointers: []string{"/headers/carillon-key"}},
		{Name: "our header, other case", Data: header("Carillon-Any/thing", `1`), Pointers: []string{"/headers/Carillon-Any~1thing"}},
		{Name: "CC", Data: header("CC", `"a"`), Pointers: []string{"/headers/CC"}},
		{Name: "BCC", Data: header("BCC", `"a"`), Pointers: []string{"/headers/BCC"}},
		{Name: "header without a name", Data: header("", `1`), Pointers: []string{"/headers/"}},
		{Name: "header with a long name", Data: header(long, `1`), Pointers: []string{"/headers/" + long}},
		{Name: "header null", Data: header("a", `null`), Pointers: []string{"/headers/a"}},
		{Name: "header list", Data: header("a", `[1]`), Pointers: []string{"/headers/a"}},
		{Name: "header object", Data: header("a", `{}`), Pointers: []string{"/headers/a/secret"}},
		{Name: "header above 64 bits", Data: header("a", `9223372036854775808`), Pointers: []string{"/headers/a"}},
		{Name: "header below 64 bits", Data: header("a", `-9223372036854775809`), Pointers: []string{"/headers/a"}},
		{Name: "header above a double", Data: header("a", `1e400`), Pointers: []string{"/headers/a"}},
		{Name: "large headers", Data: header("a", `"`+strings.Repeat("x", 32<<10)+`"`), Pointers: []string{"/headers"}},
		{
			Name:     "everything",
			Data:     `{"queue":"q","exchange":"` + long + `","headers":{"b":[],"a":{}},"payload":1}`,
			Pointers: []string{"/exchange", "/exchange", "/headers/a/secret", "/headers/b"},
		},
	}
}

// good returns data that must be accepted and sent; the exchange delivers to the queue whatever the routing key.
func good(queue, exchange string) map[string][]byte {
	return map[string][]byte{
		"queue":                []byte(`{"queue":"` + queue + `","payload":1}`),
		"exchange":             []byte(`{"exchange":"` + exchange + `","routingKey":"a.b c/ü","payload":1}`),
		"no routing key":       []byte(`{"exchange":"` + exchange + `","payload":1}`),
		"long routing key":     []byte(`{"exchange":"` + exchange + `","routingKey":"` + strings.Repeat("k", 255) + `","payload":1}`),
		"transient":            []byte(`{"queue":"` + queue + `","persistent":false,"payload":1}`),
		"persistent":           []byte(`{"queue":"` + queue + `","persistent":true,"payload":1}`),
		"nulls for defaults":   []byte(`{"queue":"` + queue + `","exchange":null,"routingKey":null,"headers":null,"persistent":null,"payload":null}`),
		"large headers":        []byte(`{"queue":"` + queue + `","headers":{"a":"` + strings.Repeat("x", 32<<10-3) + `"},"payload":1}`),
		"header names":         []byte(`{"queue":"` + queue + `","headers":{"x-match":"all"," ":"","\u0000":1,"` + strings.Repeat("ü", 127) + `":true},"payload":1}`),
		"headers like a death": []byte(`{"queue":"` + queue + `","headers":{"x-death":"a","x-delay":1,"cc":"b"},"payload":1}`),
	}
}

const password = "s3cr%2Fet%40x" // as it stands in a URL

func TestNewRefuses(t *testing.T) {
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]rabbitmq.Options{
		"nothing":                   {},
		"other scheme":              {URL: "http://user:" + password + "@127.0.0.1/"},
		"no scheme":                 {URL: "user:" + password + "@127.0.0.1/"},
		"space":                     {URL: "amqp://user:" + password + "@127.0.0.1/ "},
		"port in words":             {URL: "amqp://user:" + password + "@127.0.0.1:amqp/"},
		"port 0":                    {URL: "amqp://user:" + password + "@127.0.0.1:0/"},
		"port too large":            {URL: "amqp://user:" + password + "@127.0.0.1:65536/"},
		"slash in the password":     {URL: "amqp://user:1/" + password + "@127.0.0.1/"},
		"hash in the password":      {URL: "amqp://user:1#" + password + "@127.0.0.1/"},
		"question in the password":  {URL: "amqp://user:1?" + password + "@127.0.0.1/"},
		"wrong escape":              {URL: "amqp://user:%zz" + password + "@127.0.0.1/"},
		"heartbeat":                 {URL: "amqp://user:" + password + "@127.0.0.1/?heartbeat=often"},
		"unknown mechanism":         {URL: "amqp://user:" + password + "@127.0.0.1/?auth_mechanism=GSSAPI"},
		"TLS options without TLS":   {URL: "amqp://user:" + password + "@127.0.0.1/", TLS: &tls.Config{}},
		"CA file without TLS":       {URL: "amqp://user:" + password + "@127.0.0.1/", CAFile: notPEM},
		"no such CA file":           {URL: "amqps://user:" + password + "@127.0.0.1/", CAFile: notPEM + "x"},
		"no such CA file by URL":    {URL: "amqps://user:" + password + "@127.0.0.1/?cacertfile=" + notPEM + "x"},
		"CA file without authority": {URL: "amqps://user:" + password + "@127.0.0.1/", CAFile: notPEM},
		"certificate without key":   {URL: "amqps://user:" + password + "@127.0.0.1/", CertFile: notPEM},
		"negative window":           {URL: "amqp://127.0.0.1/", Window: -1},
	} {
		t.Run(name, func(t *testing.T) {
			sender, err := rabbitmq.New(o)
			if err == nil {
				_ = sender.Close()
				t.Fatal("New accepts it")
			}
			if text := err.Error(); strings.Contains(text, "s3cr") {
				t.Errorf("the password stands in the error %q", text)
			}
		})
	}
}

// A sender whose broker is down costs no attempt, returns the time to try again, and never shows the password.
func TestBrokerIsDown(t *testing.T) {
	var log bytes.Buffer
	address := unused(t)
	sender, err := rabbitmq.New(rabbitmq.Options{
		URL: "amqp://user:" + password + "@" + address + "/vhost", Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 12, 24, 14, 0, 0, 0, time.UTC)
	name := job.Name{Tenant: job.DefaultTenant, Key: "k"}
	d := callbacks.Delivery{ID: job.DeliveryID(name, at, 0, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at, Data: good("q", "e")["queue"]}
	check := func(when string) string {
		t.Helper()
		err := sender.Send(t.Context(), d)
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || !failure.Unavailable || failure.Permanent || failure.After <= 0 || failure.After > 15*time.Second {
			t.Fatalf("%s: Send is %#v", when, err)
		}
		return err.Error()
	}
	text := ""
	for !strings.Contains(text, "refused") { // until the first try to connect has failed
		text = check("before it ever connected")
	}
	if !strings.Contains(text, address) || !strings.Contains(text, "vhost vhost") {
		t.Errorf("the error %q does not say which broker", text)
	}
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	text += check("after Close")
	if all := text + log.String(); strings.Contains(all, "s3cr") || !strings.Contains(log.String(), address) {
		t.Errorf("errors and logs must have the address, but not the password: %s", all)
	}
}

// unused returns an address without a listener.
func unused(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
