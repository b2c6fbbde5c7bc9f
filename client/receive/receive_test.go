package receive_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/client/receive"
)

var now = time.Unix(1_800_000_000, 0)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// sign returns the v1 signature of a delivery.
func sign(secret, id string, at time.Time, body string) string {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func deliver(h http.Handler, id, signature string, at time.Time, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	r.Header.Set("Webhook-Signature", signature)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newReceiver(t *testing.T, c receive.Config) *receive.Receiver {
	t.Helper()
	c.Now = func() time.Time { return now }
	r, err := receive.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerify(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24))
	r := newReceiver(t, receive.Config{
		Secrets: []string{secret}, PublicKeys: []string{"whpk_" + base64.StdEncoding.EncodeToString(public)}, MaxBody: 100,
	})
	h := r.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	v1a := "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, fmt.Appendf(nil, "ed.%d.{}", now.Unix())))
	for _, c := range []struct {
		name, id, signature string
		at                  time.Time
		body                string
		want                int
	}{
		{"genuine", "a", sign(secret, "a", now, "{}"), now, "{}", 200},
		{"one of two signatures", "b", sign(other, "b", now, "{}") + " " + sign(secret, "b", now, "{}"), now, "{}", 200},
		{"an Ed25519 signature", "ed", v1a, now, "{}", 200},
		{"an Ed25519 signature of another id", "de", v1a, now, "{}", 401},
		{"another secret", "c", sign(other, "c", now, "{}"), now, "{}", 401},
		{"another body", "d", sign(secret, "d", now, "{}"), now, "[]", 401},
		{"another id", "e", sign(secret, "f", now, "{}"), now, "{}", 401},
		{"no signature", "g", "", now, "{}", 401},
		{"nonsense", "h", "v1,!!! v2,aaaa x", now, "{}", 401},
		{"no id", "", sign(secret, "", now, "{}"), now, "{}", 401},
		{"too old", "i", sign(secret, "i", now.Add(-6*time.Minute), "{}"), now.Add(-6 * time.Minute), "{}", 401},
		{"from the future", "j", sign(secret, "j", now.Add(6*time.Minute), "{}"), now.Add(6 * time.Minute), "{}", 401},
		{"too long", "k", sign(secret, "k", now, strings.Repeat("x", 101)), now, strings.Repeat("x", 101), 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := deliver(h, c.id, c.signature, c.at, c.body)
			if w.Code != c.want {
				t.Errorf("answered with %d, want %d: %s", w.Code, c.want, w.Body)
			}
			if c.want == 200 && w.Body.String() != c.body {
				t.Errorf("the handler got the body %q", w.Body)
			}
		})
	}
}

func TestDuplicates(t *testing.T) {
	calls, answer := 0, 200
	var h http.Handler
	inner := 0
	h = newReceiver(t, receive.Config{Secrets: []string{secret}, Remember: 2}).Handler(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			if r.Header.Get("Webhook-Id") == "nested" && inner == 0 {
				inner = deliver(h, "nested", sign(secret, "nested", now, ""), now, "").Code
			}
			if answer == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(answer)
		}))
	again := func(id string, wantCode, wantCalls int) {
		t.Helper()
		if w := deliver(h, id, sign(secret, id, now, ""), now, ""); w.Code != wantCode || calls != wantCalls {
			t.Errorf("%s: answered with %d after %d calls, want %d after %d", id, w.Code, calls, wantCode, wantCalls)
		}
	}
	again("a", 200, 1)
	again("a", 200, 1) // dropped
	answer = 500
	again("b", 500, 2)
	answer = 204
	again("b", 204, 3) // the first was not taken
	again("b", 200, 3)
	again("nested", 204, 4)
	if inner != 503 {
		t.Errorf("a duplicate of one that is under way was answered with %d", inner)
	}
	again("b", 200, 4)
	again("a", 204, 5) // forgotten: only two ids are remembered
	answer = 0
	func() {
		defer func() { _ = recover() }()
		deliver(h, "p", sign(secret, "p", now, ""), now, "")
	}()
	answer = 200
	again("p", 200, 7) // the panic took nothing
}

func TestConfig(t *testing.T) {
	for _, c := range []receive.Config{
		{}, {Secrets: []string{"whsec_!"}}, {Secrets: []string{"whsec_"}}, {PublicKeys: []string{"whpk_AAAA"}},
	} {
		if _, err := receive.New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		} else if strings.Contains(err.Error(), "whsec_!") {
			t.Errorf("the error has the secret: %v", err)
		}
	}
}
