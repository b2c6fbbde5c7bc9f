package secrets_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
)

// verifies asks the library of Standard Webhooks whether a message is genuine, at the time when it was sent.
func verifies(t testing.TB, secret, id string, at time.Time, body []byte, signature string) bool {
	t.Helper()
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
	h.Set("webhook-signature", signature)
	return verifier.VerifyIgnoringTimestamp(body, h) == nil
}

// verifiesBy reports whether a public key verifies a signature of the version v1a.
func verifiesBy(t *testing.T, publicKey, message, signature string) bool {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(publicKey, "whpk_"))
	if err != nil || len(key) != ed25519.PublicKeySize {
		t.Fatalf("the public key is %q: %v", publicKey, err)
	}
	for one := range strings.SplitSeq(signature, " ") {
		if encoded, ok := strings.CutPrefix(one, "v1a,"); ok {
			if s, err := base64.StdEncoding.DecodeString(encoded); err == nil && ed25519.Verify(key, []byte(message), s) {
				return true
			}
		}
	}
	return false
}

func TestSign(t *testing.T) {
	r := open(t, newRecords(), ring(t, 1))
	sign := func(tenant, name string, at time.Time) string {
		t.Helper()
		signature, err := r.Sign(t.Context(), tenant, name, "msg_1", at, []byte(`{"a": 1}`))
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
	if got := sign("acme", "", epoch); got != "" {
		t.Errorf("without a secret it is signed by %q", got)
	}
	if _, err := r.Sign(t.Context(), "acme", "default", "msg_1", epoch, nil); err == nil {
		t.Error("a secret that is asked for by its name and missing signs")
	}
	// A known value: that of the specification's own example.
	const known = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	shown, made, err := r.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{Secret: known}, epoch)
	if err != nil || shown != known || made.Name != "default" || len(made.Valid) != 1 || made.Valid[0] != (secrets.Generation{}) {
		t.Fatalf("made %s, %+v, %v", shown, made, err)
	}
	example, err := r.Sign(t.Context(), "acme", "", "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if err != nil || example != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("the example is signed by %q, %v", example, err)
	}
	if got := sign("other", "", epoch); got != "" {
		t.Errorf("another tenant's message is signed by %q", got)
	}
	if _, _, err := r.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); !errors.Is(err, secrets.ErrExists) {
		t.Errorf("made again: %v", err)
	}

	named, made, err := r.CreateSigning(t.Context(), "acme", "partner", secrets.NewSigning{Ed25519: true}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if key, err := secrets.ParseSigningSecret(named); err != nil || len(key) != 32 {
		t.Errorf("the random secret has %d bytes, %v", len(key), err)
	}
	both := sign("acme", "partner", epoch)
	message := "msg_1." + strconv.FormatInt(epoch.Unix(), 10) + `.{"a": 1}`
	if !strings.HasPrefix(both, "v1,") || !verifies(t, named, "msg_1", epoch, []byte(`{"a": 1}`), both) ||
		!verifiesBy(t, made.Valid[0].PublicKey, message, both) {
		t.Errorf("signed by %q", both)
	}
	if verifies(t, known, "msg_1", epoch, []byte(`{"a": 1}`), both) || verifiesBy(t, made.Valid[0].PublicKey, message+" ", both) {
		t.Error("it is verified by what it is not signed by")
	}
	if err := r.DeleteSigning(t.Context(), "acme", "default"); err != nil {
		t.Error(err)
	}
	if err := r.DeleteSigning(t.Context(), "acme", "default"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if got := sign("acme", "", epoch); got != "" {
		t.Errorf("after the secret was deleted it is signed by %q", got)
	}
}

// A signature by a default secret that can't be decrypted is not left out.
func TestUnreadableDefault(t *testing.T) {
	records := newRecords()
	r := open(t, records, ring(t, 1))
	if _, _, err := r.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, epoch); err != nil {
		t.Fatal(err)
	}
	changeRecord(t, records, "signing-secrets", "acme/default", func(body []byte) []byte {
		return bytes.Replace(body, []byte(`"sealed":"`), []byte(`"sealed":"AAAA`), 1)
	})
	if got, err := open(t, records, ring(t, 1)).Sign(t.Context(), "acme", "", "id", epoch, nil); err == nil {
		t.Errorf("it is signed by %q", got)
	}
}

func TestRotate(t *testing.T) {
	r := open(t, newRecords(), ring(t, 1))
	body := []byte("x")
	var all []string
	first, _, err := r.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{Ed25519: true}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, first)
	rotate := func(overlap time.Duration, at time.Time) (secrets.Signing, error) {
		t.Helper()
		secret, rotated, err := r.Rotate(t.Context(), "acme", "default", "", overlap, at)
		if err == nil {
			all = append(all, secret)
		}
		return rotated, err
	}
	// expect checks that exactly the wanted secrets verify a delivery at a time.
	expect := func(what string, at time.Time, want ...int) {
		t.Helper()
		signature, err := r.Sign(t.Context(), "acme", "", "id", at, body)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(signature, "v1,"); n != len(want) || strings.Count(signature, "v1a,") != n {
			t.Errorf("%s: the signature is %q", what, signature)
		}
		for i, secret := range all {
			should := false
			for _, w := range want {
				should = should || w == i
			}
			if verifies(t, secret, "id", at, body, signature) != should {
				t.Errorf("%s: secret %d verifies: %t", what, i, !should)
			}
		}
	}
	expect("at first", epoch, 0)
	rotated, err := rotate(time.Hour, epoch)
	if err != nil || len(rotated.Valid) != 2 || !rotated.Valid[0].Until.IsZero() || !rotated.Valid[1].Until.Equal(epoch.Add(time.Hour)) ||
		rotated.Valid[0].PublicKey == "" || rotated.Valid[0].PublicKey == rotated.Valid[1].PublicKey {
		t.Errorf("rotated: %+v, %v", rotated, err)
	}
	expect("both are valid", epoch, 0, 1)
	expect("until the last moment", epoch.Add(time.Hour-time.Second), 0, 1)
	expect("and no longer", epoch.Add(time.Hour), 1)

	if rotated, err = rotate(0, epoch.Add(time.Minute)); err != nil || len(rotated.Valid) != 1 {
		t.Errorf("rotated at once: %+v, %v", rotated, err)
	}
	expect("a rotation at once ends all before it", epoch.Add(time.Minute), 2)
	for range 3 {
		if _, err := rotate(2*time.Hour, epoch.Add(time.Minute)); err != nil {
			t.Error(err)
		}
	}
	expect("four at most", epoch.Add(time.Minute), 2, 3, 4, 5)
	if _, err := rotate(time.Hour, epoch.Add(time.Minute)); !errors.Is(err, secrets.ErrOverlap) {
		t.Errorf("a fifth one: %v", err)
	}
	if _, err := rotate(time.Hour, epoch.Add(3*time.Hour)); err != nil {
		t.Errorf("after they have ended: %v", err)
	}
	expect("then two", epoch.Add(3*time.Hour), 5, 6)
	listed, err := r.ListSigning(t.Context(), "acme", "", 10, epoch.Add(3*time.Hour))
	if err != nil || len(listed) != 1 || len(listed[0].Valid) != 2 || !listed[0].CreatedAt.Equal(epoch) ||
		!listed[0].UpdatedAt.Equal(epoch.Add(3*time.Hour)) {
		t.Errorf("listed %+v, %v", listed, err)
	}
	listed, err = r.ListSigning(t.Context(), "acme", "", 10, epoch.Add(5*time.Hour))
	if err != nil || len(listed[0].Valid) != 1 {
		t.Errorf("listed when the overlap is over: %+v, %v", listed, err)
	}
	given := "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24))
	if secret, _, err := r.Rotate(t.Context(), "acme", "default", given, 0, epoch); err != nil || secret != given {
		t.Errorf("to a given one: %s, %v", secret, err)
	}
	if _, _, err := r.Rotate(t.Context(), "acme", "nothing", "", 0, epoch); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("what there is not: %v", err)
	}
}

func TestParseSigningSecret(t *testing.T) {
	of := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for text, good := range map[string]bool{
		of(24): true, of(32): true, of(64): true, of(23): false, of(65): false, of(0): false, "": false, "whsec_": false,
		of(32)[6:]: false, strings.ToUpper(of(32)): false, of(25)[:len(of(25))-1]: false, of(32) + "\n": false, " " + of(32): false,
		strings.Replace(of(32), "A", "-", 1): false, "whsk_" + of(32)[6:]: false, of(32)[:30] + "\n" + of(32)[30:]: false,
	} {
		if _, err := secrets.ParseSigningSecret(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzSigningSecret: an accepted secret has only one spelling, and the library of Standard Webhooks verifies its
// signatures from the header. Any other text is refused without being quoted.
func FuzzSigningSecret(f *testing.F) {
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_1", []byte(`{"a":1}`))
	f.Add("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "msg_1", []byte{})
	f.Add("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a.b", []byte("."))
	f.Add("whsec_\n", "", []byte(nil))
	f.Fuzz(func(t *testing.T, text, id string, body []byte) {
		key, err := secrets.ParseSigningSecret(text)
		if err != nil {
			if len(text) > 12 && strings.Contains(err.Error(), text) {
				t.Fatalf("the error quotes it: %v", err)
			}
			return
		}
		if again := "whsec_" + base64.StdEncoding.EncodeToString(key); again != text {
			t.Fatalf("%q is %q", text, again)
		}
		r := open(t, newRecords(), ring(t, 1))
		if _, _, err := r.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{Secret: text, Ed25519: true}, epoch); err != nil {
			t.Fatal(err)
		}
		signature, err := r.Sign(t.Context(), "acme", "", id, epoch, body)
		if err != nil {
			t.Fatal(err)
		}
		if id != "" && !verifies(t, text, id, epoch, body, signature) {
			t.Fatalf("%q does not verify %q", text, signature)
		}
		if verifies(t, text, id+"x", epoch, body, signature) || verifies(t, text, id, epoch.Add(time.Second), body, signature) {
			t.Fatal("it verifies another message")
		}
	})
}

func BenchmarkSign(b *testing.B) {
	r := open(b, newRecords(), ring(b, 1))
	for name, n := range map[string]secrets.NewSigning{"default": {}, "ed25519": {Ed25519: true}} {
		if _, _, err := r.CreateSigning(b.Context(), "acme", name, n, epoch); err != nil {
			b.Fatal(err)
		}
	}
	body := []byte(`{"n":12345,"text":"` + strings.Repeat("your turn ", 18) + `"}`)
	for _, test := range []struct{ name, tenant, secret string }{
		{"no secret", "other", ""}, {"v1", "acme", ""}, {"v1 and v1a", "acme", "ed25519"},
	} {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Sign(b.Context(), test.tenant, test.secret, "01MAM5KZZTXMC7X6N0EVPE21WA", epoch, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
