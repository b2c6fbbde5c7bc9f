package kafka_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/job"
)

func TestNewRefuses(t *testing.T) {
	broker := []string{"127.0.0.1:9092"}
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(notPEM, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]kafka.Options{
		"nothing":                   {},
		"an empty address":          {Brokers: []string{"127.0.0.1:9092", ""}},
		"a URL":                     {Brokers: []string{"kafka://127.0.0.1:9092"}},
		"no host":                   {Brokers: []string{":9092"}},
		"port 0":                    {Brokers: []string{"127.0.0.1:0"}},
		"port too large":            {Brokers: []string{"127.0.0.1:65536"}},
		"port in words":             {Brokers: []string{"127.0.0.1:kafka"}},
		"two in one":                {Brokers: []string{"a:1,b:2"}},
		"CA file without TLS":       {Brokers: broker, CAFile: notPEM},
		"certificate without TLS":   {Brokers: broker, CertFile: notPEM},
		"key without TLS":           {Brokers: broker, KeyFile: notPEM},
		"no such CA file":           {Brokers: broker, TLS: true, CAFile: notPEM + "x"},
		"CA file without authority": {Brokers: broker, TLS: true, CAFile: notPEM},
		"certificate without key":   {Brokers: broker, TLS: true, CertFile: notPEM},
		"unknown mechanism":         {Brokers: broker, Mechanism: "GSSAPI", Username: username, Password: password},
		"no mechanism":              {Brokers: broker, Username: username, Password: password},
		"password alone":            {Brokers: broker, Password: password},
		"no password":               {Brokers: broker, Mechanism: "PLAIN", Username: username},
		"no username":               {Brokers: broker, Mechanism: "PLAIN", Password: password},
	} {
		t.Run(name, func(t *testing.T) {
			sender, err := kafka.New(o)
			if err == nil {
				_ = sender.Close()
				t.Fatal("New accepts it")
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the password stands in the error %q", err)
			}
		})
	}
	for _, address := range []string{"localhost", "localhost:1", "127.0.0.1", "[::1]:9092", "[::1]", "kafka-0.kafka.svc.cluster.local:9094"} {
		sender, err := kafka.New(kafka.Options{Brokers: []string{address}})
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		_ = sender.Close()
	}
}

// A sender whose brokers are down costs no attempt, returns the time to try again, and never shows the password.
func TestBrokersAreDown(t *testing.T) {
	var log bytes.Buffer
	address := unused(t)
	sender, err := kafka.New(kafka.Options{
		Brokers: []string{address}, Mechanism: "PLAIN", Username: username, Password: password,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := delivery(data(``))
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
	if !strings.Contains(text, address) {
		t.Errorf("the error %q does not say which broker", text)
	}
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	text += check("after Close")
	if all := text + log.String(); strings.Contains(all, password) || !strings.Contains(log.String(), address) {
		t.Errorf("errors and logs must have the address, but not the password: %s", all)
	}
}

// During an outage attempts fail at once, and do not each wait for a connection.
func TestOutageIsKnown(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	sender := c.sender()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
	c.kafka.Close()
	for { // until that is known
		err := sender.Send(ctx, delivery(data(``)))
		if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || !failure.Unavailable {
			t.Fatalf("Send = %v", err)
		}
		if strings.Contains(err.Error(), "kafka at ") {
			break
		}
	}
	for range 1000 { // were each to try, they would take some minutes
		if err := sender.Send(ctx, delivery(data(``))); err == nil || !strings.Contains(err.Error(), "kafka at ") {
			t.Fatalf("Send = %v", err)
		}
	}
	c.kafka.Start()
	if err := deliver(ctx, sender, delivery(data(``))); err != nil {
		t.Fatal(err)
	}
}

func TestCreateTopics(t *testing.T) {
	for name, allowed := range map[string]bool{"allowed": true, "not allowed": false} {
		t.Run(name, func(t *testing.T) {
			ctx, c := limited(t), newCluster(t, kfake.AllowAutoTopicCreation())
			o := c.options()
			o.AutoCreateTopics = allowed
			err := deliver(ctx, newSender(t, o), delivery(data(`"topic":"new.topic"`)))
			if (err == nil) != allowed {
				t.Errorf("Send = %v", err)
			}
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = nil // all
			there := false
			for _, topic := range ask[*kmsg.MetadataResponse](ctx, t, c.client(), req).Topics {
				there = there || *topic.Topic == "new.topic"
			}
			if there != allowed {
				t.Errorf("the topic is there: %t", there)
			}
		})
	}
}

func TestSASL(t *testing.T) {
	ctx := limited(t)
	c := newCluster(t, kfake.Superuser("SCRAM-SHA-256", "s256", password), kfake.Superuser("SCRAM-SHA-512", "s512", password))
	const refused = "another login" // the fake hangs up without a word
	for _, test := range []struct {
		mechanism, username, password string
		says                          string // empty if it works
	}{
		{"PLAIN", username, password, ""},
		{"SCRAM-SHA-256", "s256", password, ""},
		{"SCRAM-SHA-512", "s512", password, ""},
		{"scram-sha-512", "s512", password, ""},
		{"PLAIN", username, "wrong-password", refused},
		{"SCRAM-SHA-256", "s256", "wrong-password", refused},
		{"SCRAM-SHA-512", "nobody", password, refused},
	} {
		t.Run(test.mechanism+" "+test.username+" "+test.says, func(t *testing.T) {
			o := c.options()
			o.Mechanism, o.Username, o.Password = test.mechanism, test.username, test.password
			tryUntil(ctx, t, newSender(t, o), test.says)
		})
	}
}

// A wrong password is reported in the broker's words, in the job's error and once in the log, and costs no attempt.
func TestWrongPassword(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	c.kafka.ControlKey(kmsg.SASLAuthenticate.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's order
		c.kafka.KeepControl()
		resp := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		text := "Invalid credentials"
		resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, &text
		return resp, nil, true
	})
	var log bytes.Buffer
	o := c.options()
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	sender, err := kafka.New(o)
	if err != nil {
		t.Fatal(err)
	}
	tryUntil(ctx, t, sender, "Invalid credentials")
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "Invalid credentials"); n != 1 {
		t.Errorf("the log tells it %d times: %s", n, log.String())
	}
}

// Spaces in a list of brokers do no harm.
func TestSpacesAroundBrokers(t *testing.T) {
	ctx, c := limited(t), newCluster(t)
	o := c.options()
	o.Brokers = []string{" " + o.Brokers[0] + " "}
	if err := deliver(ctx, newSender(t, o), delivery(data(``))); err != nil {
		t.Fatal(err)
	}
}

// tryUntil sends until that works, or if it must not, until the error says why. None costs an attempt.
func tryUntil(ctx context.Context, t *testing.T, sender callbacks.Sender, says string) {
	t.Helper()
	for {
		err := sender.Send(ctx, delivery(data(``)))
		if err == nil && says == "" {
			return
		}
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || !failure.Unavailable || ctx.Err() != nil {
			t.Fatalf("Send = %v", err)
		}
		if strings.Contains(err.Error(), "password") {
			t.Fatalf("the password stands in the error %q", err)
		}
		if says != "" && strings.Contains(err.Error(), says) {
			return
		}
		time.Sleep(min(failure.After, 50*time.Millisecond)) // only to save processor time: the loop has the condition
	}
}

func TestTLS(t *testing.T) {
	ctx := limited(t)
	dir := t.TempDir()
	authority := newCertificate(t, dir, "ca", nil)
	server := newCertificate(t, dir, "server", authority)
	newCertificate(t, dir, "client", authority)
	newCertificate(t, dir, "stranger", nil)
	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Leaf)
	// Not by newCluster: its clients speak no TLS.
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, inbox), kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{*server}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer brokers.Close()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, test := range []struct {
		name    string
		options kafka.Options
		says    string
	}{
		{"as it should be", kafka.Options{TLS: true, CAFile: file("ca.pem"), CertFile: file("client.pem"), KeyFile: file("client.key")}, ""},
		{"unknown authority", kafka.Options{TLS: true, CertFile: file("client.pem"), KeyFile: file("client.key")}, "unknown authority"},
		{"no certificate", kafka.Options{TLS: true, CAFile: file("ca.pem")}, "certificate"},
		{
			"certificate of another authority",
			kafka.Options{TLS: true, CAFile: file("ca.pem"), CertFile: file("stranger.pem"), KeyFile: file("stranger.key")}, "certificate",
		},
		{"no TLS", kafka.Options{}, "TLS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Brokers = brokers.ListenAddrs()
			tryUntil(ctx, t, newSender(t, test.options), test.says)
		})
	}
}

// newCertificate writes a certificate for loopback and its key, signed by another's or by itself.
func newCertificate(t *testing.T, dir, name string, by *tls.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        by == nil, BasicConstraintsValid: true,
	}
	parent, signer := certificate, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(name+".pem", "CERTIFICATE", der)
	write(name+".key", "PRIVATE KEY", keyDER)
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
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

// A tenant's grants are checked when a job is submitted, and again when it is sent. A refused delivery does not reach a
// broker.
func TestGranted(t *testing.T) {
	var allow callbacks.Grants
	if err := allow.Set("acme=acme.*,*=public"); err != nil {
		t.Fatal(err)
	}
	sender, err := kafka.New(kafka.Options{Brokers: []string{"127.0.0.1:1"}, Allow: allow})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	for _, c := range []struct {
		tenant, topic string
		want          bool
	}{
		{"acme", "acme.mails", true}, {"acme", "public", true}, {"other", "public", true},
		{"acme", "other.mails", false}, {"other", "acme.mails", false}, {"acme", "acme", false},
	} {
		data := []byte(`{"topic":"` + c.topic + `"}`)
		err := sender.Granted(c.tenant, data)
		if invalid, ok := errors.AsType[*job.Invalid](err); ok == c.want || ok && invalid.Fields[0].Pointer != "/topic" {
			t.Errorf("%s, %s: %v", c.tenant, c.topic, err)
		}
		err = sender.Send(t.Context(), callbacks.Delivery{Name: job.Name{Tenant: c.tenant, Key: "k"}, Data: data})
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || failure.Refused == c.want || failure.Unavailable != c.want {
			t.Errorf("%s, %s: %v", c.tenant, c.topic, err)
		}
		if failure.Refused && !strings.Contains(err.Error(), "--kafka-allow") {
			t.Errorf("the error does not name the option: %v", err)
		}
	}
}
