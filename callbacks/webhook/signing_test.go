package webhook_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// newSecrets returns the secrets of an empty store.
func newSecrets(t testing.TB) *secrets.Secrets {
	t.Helper()
	keys, err := secrets.NewKeyring(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return secrets.New(memory.New(), keys, slog.New(slog.DiscardHandler))
}

// received is a request as a receiver sees it.
type received struct {
	header http.Header
	body   []byte
}

// TestStandardWebhooks: the library of Standard Webhooks accepts a delivery, by its own clock, and rejects every
// altered one.
func TestStandardWebhooks(t *testing.T) {
	requests := make(chan received, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		requests <- received{req.Header, body}
	}))
	defer server.Close()
	vault := newSecrets(t)
	create := func(name string, ed25519 bool) *standardwebhooks.Webhook {
		t.Helper()
		secret, _, err := vault.CreateSigning(t.Context(), job.DefaultTenant, name, secrets.NewSigning{Ed25519: ed25519}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return verifier(t, secret)
	}
	byDefault, partner := create("default", false), create("partner", true)
	sender := newSender(t, webhook.Options{})
	send := func(d callbacks.Delivery) received {
		t.Helper()
		d.Secrets, d.SentAt = vault, time.Now()
		if err := sender.Send(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		return <-requests
	}
	d := delivery(dataOf(server.URL, `{ "n": 1.50, "text": "Grüße \u00e9" }`))
	for name, test := range map[string]struct {
		signing  string
		envelope job.Envelope
		data     []byte
		by, not  *standardwebhooks.Webhook
	}{
		"default":       {"", job.EnvelopeNone, d.Data, byDefault, partner},
		"named":         {"partner", job.EnvelopeNone, d.Data, partner, byDefault},
		"structured":    {"", job.EnvelopeStructured, d.Data, byDefault, partner},
		"binary":        {"", job.EnvelopeBinary, d.Data, byDefault, partner},
		"empty body":    {"", job.EnvelopeNone, []byte(`{"url":"` + server.URL + `"}`), byDefault, partner},
		"large payload": {"partner", job.EnvelopeNone, dataOf(server.URL, `"`+strings.Repeat("x", 200_000)+`"`), partner, byDefault},
	} {
		t.Run(name, func(t *testing.T) {
			d := d
			d.Signing, d.Envelope, d.Data = test.signing, test.envelope, test.data
			got := send(d)
			if err := test.by.Verify(got.body, got.header); err != nil {
				t.Fatalf("%v: %v", err, got.header)
			}
			if err := test.not.Verify(got.body, got.header); err == nil {
				t.Error("another secret verifies it")
			}
			if err := test.by.Verify(append(bytes.Clone(got.body), ' '), got.header); err == nil {
				t.Error("a body that was changed is verified")
			}
			for _, name := range []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature"} {
				changed := got.header.Clone()
				changed.Set(name, strings.Map(func(r rune) rune {
					if r == '1' {
						return '2'
					}
					return r
				}, got.header.Get(name))+"1")
				if err := test.by.Verify(got.body, changed); name != "Webhook-Signature" && err == nil {
					t.Errorf("it is verified with another %s", name)
				}
			}
		})
	}

	// Each attempt has the same id and a signature of its own time; an old one is refused by the receiver's clock.
	d.Attempt = 2
	first := send(d)
	d.Attempt, d.Secrets, d.SentAt = 3, vault, time.Now().Add(-10*time.Minute)
	if err := sender.Send(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	old := <-requests
	if err := byDefault.Verify(old.body, old.header); err == nil || !strings.Contains(err.Error(), "too old") {
		t.Errorf("an old one: %v", err)
	}
	if err := byDefault.VerifyIgnoringTimestamp(old.body, old.header); err != nil {
		t.Errorf("an old one, apart from its age: %v", err)
	}
	if old.header.Get("Webhook-Id") != first.header.Get("Webhook-Id") ||
		old.header.Get("Webhook-Signature") == first.header.Get("Webhook-Signature") {
		t.Errorf("two attempts have %v and %v", first.header, old.header)
	}
	replayed := old.header.Clone()
	replayed.Set("Webhook-Timestamp", strconv.FormatInt(time.Now().Unix(), 10))
	if err := byDefault.Verify(old.body, replayed); err == nil {
		t.Error("an old one is taken for a new one")
	}

	// During a rotation, receivers with either secret can verify; afterwards, only those with the new one.
	next, _, err := vault.Rotate(t.Context(), job.DefaultTenant, "default", "", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got := send(d)
	for name, v := range map[string]*standardwebhooks.Webhook{"old": byDefault, "new": verifier(t, next)} {
		if err := v.Verify(got.body, got.header); err != nil {
			t.Errorf("in the rotation, the %s secret: %v", name, err)
		}
	}
	last, _, err := vault.Rotate(t.Context(), job.DefaultTenant, "default", "", 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	got = send(d)
	if err := verifier(t, last).Verify(got.body, got.header); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	if err := verifier(t, next).Verify(got.body, got.header); err == nil {
		t.Error("after the rotation, the secret before verifies")
	}
}

func verifier(t *testing.T, secret string) *standardwebhooks.Webhook {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestErrorsHoldNoSecrets: a receiver that quotes the headers it was sent, wherever the quotation is cut off, brings no
// part of a secret into the error.
func TestErrorsHoldNoSecrets(t *testing.T) {
	vault := newSecrets(t)
	const short, long = "k3y", "L0ng%/+s3cret-"
	for name, value := range map[string]string{"short": short, "long": strings.Repeat(long, 30)} {
		if _, _, err := vault.Put(t.Context(), job.DefaultTenant, name, secrets.Value{Text: value}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	sender := newSender(t, webhook.Options{})
	for padding := range 12 {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			for range 5 {
				fmt.Fprint(w, strings.Repeat(".", padding*37%90), req.Header.Get("X-Long"), " ", req.Header.Get("X-Api-Key"))
			}
		}))
		d := delivery([]byte(`{"url":"` + server.URL + `","headers":{"x-long":{"secret":"long"},"X-API-Key":{"secret":"short","prefix":"Key "}}}`))
		d.Secrets = vault
		err := sender.Send(t.Context(), d)
		server.Close()
		if err == nil || !strings.Contains(err.Error(), "***") {
			t.Fatalf("the error is %v", err)
		}
		if strings.Contains(err.Error(), short) || strings.Contains(err.Error(), long[:4]) {
			t.Errorf("the error quotes a secret: %v", err)
		}
	}
}

// TestErrorsHoldNoEscapedSecrets: receivers escape their quotations in different ways.
func TestErrorsHoldNoEscapedSecrets(t *testing.T) {
	vault := newSecrets(t)
	if _, _, err := vault.Put(t.Context(), job.DefaultTenant, "token", secrets.Value{Text: `dGhpcyBp/cyBub3+RoaW5n"x=`}, time.Now()); err != nil {
		t.Fatal(err)
	}
	sender := newSender(t, webhook.Options{})
	for _, quoted := range []string{
		`dGhpcyBp/cyBub3+RoaW5n\"x=`, `dGhpcyBp\/cyBub3+RoaW5n\"x=`, `dGhpcyBp/cyBub3\u002BRoaW5n\u0022x=`,
		`dGhpcyBp/cyBub3+RoaW5n&quot;x=`, `dGhpcyBp&#x2F;cyBub3&#43;RoaW5n&#34;x=`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "wrong: ", quoted)
		}))
		d := delivery([]byte(`{"url":"` + server.URL + `","headers":{"X-API-Key":{"secret":"token"}}}`))
		d.Secrets = vault
		err := sender.Send(t.Context(), d)
		server.Close()
		if err == nil || !strings.Contains(err.Error(), "wrong: ***") {
			t.Fatalf("the error is %v", err)
		}
		for _, part := range []string{"dGhpcyBp", "cyBub3", "RoaW5n"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("quoted as %s, the error has %v", quoted, err)
			}
		}
	}
}

// TestErrorsHoldNoEncodedSecrets: receivers quote headers in base64 and in hexadecimal digits, alone or within other
// text.
func TestErrorsHoldNoEncodedSecrets(t *testing.T) {
	vault := newSecrets(t)
	const value, plain, password = "s3cret?>~value-??", "plain~header?>value", "basic-pass?>word"
	if _, _, err := vault.Put(t.Context(), job.DefaultTenant, "token", secrets.Value{Text: value}, time.Now()); err != nil {
		t.Fatal(err)
	}
	sender := newSender(t, webhook.Options{})
	std, url := base64.StdEncoding.EncodeToString, base64.URLEncoding.EncodeToString
	escaped := func(b []byte) string { return strings.ReplaceAll(strings.ReplaceAll(std(b), "/", `\/`), "+", `\u002B`) }
	for _, secret := range []string{value, plain, "ada:" + password} {
		for name, quote := range map[string]func([]byte) string{
			"std": std, "url": url, "without padding": base64.RawStdEncoding.EncodeToString, "hex": hex.EncodeToString,
			"upper hex": func(b []byte) string { return fmt.Sprintf("%X", b) }, "escaped": escaped, "plain": func(b []byte) string { return string(b) },
			"in a query": func(b []byte) string { return neturl.QueryEscape(std(b)) },
		} {
			if name == "escaped" && secret != value {
				continue // headers that are no named secrets are masked as they are
			}
			for _, around := range [][2]string{{"", ""}, {"a", "z"}, {"ab", "yz"}, {"abc", ""}} {
				quoted := quote([]byte(around[0] + secret + around[1]))
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusUnauthorized)
					fmt.Fprint(w, "wrong: ", quoted)
				}))
				d := delivery([]byte(`{"url":"` + server.URL + `","headers":{"X-API-Key":{"secret":"token"},"X-Plain":"` + plain + `","Authorization":"Basic ` + std([]byte("ada:"+password)) + `"}}`))
				d.Secrets = vault
				err := sender.Send(t.Context(), d)
				server.Close()
				if err == nil || !strings.Contains(err.Error(), "***") {
					t.Fatalf("%s of %q: the error is %v", name, secret, err)
				}
				_, after, _ := strings.Cut(err.Error(), "wrong: ")
				own := quoted[5 : len(quoted)-9] // without the adjacent text, and its escapes
				for i := range len(own) - 4 {
					if strings.Contains(after, own[i:i+5]) {
						t.Errorf("%s of %q, between %q: the error still has %q", name, secret, around, after)
						break
					}
				}
			}
		}
	}
}

// signedBy returns a delivery of the bench's payload, to be signed by a secret of the tenant.
func signedBy(ctx context.Context, b *testing.B, d callbacks.Delivery) callbacks.Delivery {
	b.Helper()
	vault := newSecrets(b)
	if _, _, err := vault.CreateSigning(ctx, d.Name.Tenant, job.DefaultSigning, secrets.NewSigning{}, time.Now()); err != nil {
		b.Fatal(err)
	}
	d.Secrets = vault
	return d
}
