package handlers_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
)

// withSecrets gives the API an encryption key, and the real sender of webhooks.
func withSecrets(c *handlers.Config) {
	withEncryptionKey(c)
	c.Callbacks = callbacks.NewRegistry(webhook.New(webhook.Options{}), sender("kafka"))
}

func withEncryptionKey(c *handlers.Config) {
	keys, err := secrets.NewKeyring(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		panic(err)
	}
	c.Secrets = secrets.New(c.Records, keys, slog.New(slog.DiscardHandler))
}

type secretView struct {
	Name, CreatedAt, UpdatedAt string
	Destinations               []string
}

type signingView struct {
	Name, Secret, CreatedAt, UpdatedAt string
	Valid                              []struct{ Until, PublicKey string }
}

type secretPage[V any] struct {
	Items      []V
	NextCursor string
}

const acme = "Carillon-Tenant: acme"

func TestSecrets(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withSecrets)
	made := decode[secretView](a.call("PUT", "/v1/secrets/api", `{"value":"s3cret-1","destinations":["http https://api.example.com"]}`, acme).want(201))
	if made.Name != "api" || made.CreatedAt != at(0) || made.UpdatedAt != at(0) || len(made.Destinations) != 1 {
		t.Errorf("made %+v", made)
	}
	a.advance(time.Hour)
	put := decode[secretView](a.call("PUT", "/v1/secrets/api", `{"value":"s3cret-2"}`, acme).want(200))
	if put.CreatedAt != at(0) || put.UpdatedAt != at(time.Hour) || put.Destinations != nil {
		t.Errorf("put %+v", put)
	}
	for _, name := range []string{"b", "c.d_e-F", strings.Repeat("n", 128)} {
		a.call("PUT", "/v1/secrets/"+name, `{"value":"s3cret-3"}`, acme).want(201)
	}
	a.call("PUT", "/v1/secrets/api", `{"value":"s3cret-4"}`).want(201) // of another tenant
	var names []string
	for cursor := ""; ; {
		page := decode[secretPage[secretView]](a.call("GET", "/v1/secrets?limit=3"+cursor, "", acme).want(200))
		for _, s := range page.Items {
			names = append(names, s.Name)
		}
		if page.NextCursor == "" {
			break
		}
		cursor = "&cursor=" + page.NextCursor
	}
	if want := []string{"api", "b", "c.d_e-F", strings.Repeat("n", 128)}; !slices.Equal(names, want) {
		t.Errorf("listed %q, want %q", names, want)
	}
	a.call("DELETE", "/v1/secrets/b", "", acme).want(204)
	a.call("DELETE", "/v1/secrets/b", "", acme).want(404)
	a.call("DELETE", "/v1/secrets/nothing", "").want(404)

	for _, body := range []string{
		`{}`, `{"value":""}`, `{"value":null}`, `{"value":"s3cret-\n"}`, `{"value":"s3cret-5","destinations":["api.example.com"]}`,
		`{"value":"s3cret-5","name":"a"}`, `{"value":["s3cret-5"]}`, `{"value":"` + strings.Repeat("x", 3000) + "\u00fc" + `"}`,
	} {
		g := a.call("PUT", "/v1/secrets/a", body, acme).want(422)
		if strings.Contains(string(g.body), "s3cret-") || len(g.body) > 1000 {
			t.Errorf("the answer quotes the value: %s", g.body)
		}
	}
	for _, path := range []string{"a%20b", "a%2Fb", "%C3%BC", strings.Repeat("n", 129)} {
		if named := a.call("PUT", "/v1/secrets/"+path, `{"value":"s3cret-1"}`).want(422).problem().named(); !slices.Equal(named, []string{"?name"}) {
			t.Errorf("%s: %q", path, named)
		}
	}
	a.call("PUT", "/v1/secrets/a", `{"value":"s3cret-1"}`, "If-Match: *").want(400)
	a.call("PUT", "/v1/secrets/a?value=1", `{"value":"s3cret-1"}`).want(422)
	a.call("GET", "/v1/secrets/a", "").want(405)
	if log := a.log.String(); strings.Contains(log, "s3cret") {
		t.Errorf("the log has %s", log)
	}
}

func TestSigningSecrets(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withSecrets)
	g := a.call("POST", "/v1/signing-secrets", `{"name":"default","ed25519":true}`, acme).want(201)
	made := decode[signingView](g)
	if _, err := standardwebhooks.NewWebhook(made.Secret); err != nil || g.header.Get("Cache-Control") != "no-store" ||
		len(made.Valid) != 1 || !strings.HasPrefix(made.Valid[0].PublicKey, "whpk_") || made.CreatedAt != at(0) {
		t.Errorf("made %s, %v", g.body, err)
	}
	a.call("POST", "/v1/signing-secrets", `{"name":"default"}`, acme).want(409)
	const given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	if moved := decode[signingView](a.call("POST", "/v1/signing-secrets", `{"name":"moved","secret":"`+given+`"}`, acme).want(201)); moved.Secret != given {
		t.Errorf("the given one is %+v", moved)
	}
	a.advance(time.Hour)
	rotated := decode[signingView](a.call("POST", "/v1/signing-secrets/default/rotate", `{"overlap":"7d"}`, acme).want(200))
	if rotated.Secret == made.Secret || len(rotated.Valid) != 2 || rotated.Valid[0].Until != "" ||
		rotated.Valid[1].Until != at(time.Hour+7*24*time.Hour) || rotated.Valid[1].PublicKey != made.Valid[0].PublicKey {
		t.Errorf("rotated to %+v", rotated)
	}
	byDefault := decode[signingView](a.call("POST", "/v1/signing-secrets/moved/rotate", `{}`, acme).want(200))
	if len(byDefault.Valid) != 2 || byDefault.Valid[1].Until != at(25*time.Hour) {
		t.Errorf("rotated to %+v", byDefault)
	}
	g = a.call("GET", "/v1/signing-secrets?limit=1", "", acme).want(200)
	page := decode[secretPage[signingView]](g)
	if len(page.Items) != 1 || page.Items[0].Name != "default" || len(page.Items[0].Valid) != 2 || page.NextCursor == "" {
		t.Errorf("listed %s", g.body)
	}
	if strings.Contains(string(g.body), "whsec_") || strings.Contains(string(g.body), `"secret"`) {
		t.Errorf("the list has a secret: %s", g.body)
	}
	if page := decode[secretPage[signingView]](a.call("GET", "/v1/signing-secrets", "").want(200)); len(page.Items) != 0 {
		t.Errorf("another tenant has %+v", page)
	}
	for range 2 {
		a.call("POST", "/v1/signing-secrets/default/rotate", `{"overlap":"7d"}`, acme).want(200)
	}
	a.call("POST", "/v1/signing-secrets/default/rotate", `{"overlap":"7d"}`, acme).want(409)
	a.call("POST", "/v1/signing-secrets/default/rotate", `{"overlap":"0s"}`, acme).want(200)
	a.call("DELETE", "/v1/signing-secrets/moved", "", acme).want(204)
	a.call("DELETE", "/v1/signing-secrets/moved", "", acme).want(404)
	a.call("POST", "/v1/signing-secrets/moved/rotate", `{}`, acme).want(404)
	for body, pointer := range map[string]string{
		`{}`: "/name", `{"name":"none"}`: "/name", `{"name":"a b"}`: "/name", `{"name":"a","secret":"whsec_c2hvcnQ="}`: "/secret",
		`{"name":"a","secret":""}`: "/secret", `{"name":"a","overlap":"1d"}`: "/overlap",
	} {
		g := a.call("POST", "/v1/signing-secrets", body).want(422)
		if named := g.problem().named(); !slices.Equal(named, []string{pointer}) || strings.Contains(string(g.body), "c2hvcnQ") {
			t.Errorf("%s: %s", body, g.body)
		}
	}
	for _, overlap := range []string{"-1s", "91d"} {
		a.call("POST", "/v1/signing-secrets/default/rotate", `{"overlap":"`+overlap+`"}`, acme).want(422)
	}
	if log := a.log.String(); strings.Contains(log, "whsec_") {
		t.Errorf("the log has %s", log)
	}
}

// Without an encryption key there are no secrets, and the answer says how the operator can set one.
func TestNoEncryptionKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, g := range []answer{
		a.call("PUT", "/v1/secrets/a", `{"value":"s3cret"}`).want(409), a.call("POST", "/v1/signing-secrets", `{"name":"default"}`).want(409),
	} {
		if !strings.Contains(g.problem().Detail, "--encryption-key-file") {
			t.Errorf("it says %s", g.body)
		}
	}
	a.call("GET", "/v1/secrets", "").want(200)
	a.call("GET", "/v1/signing-secrets", "").want(200)
	a.call("DELETE", "/v1/secrets/a", "").want(404)
}

// hooked returns a job whose callback has a header and a signature.
func hooked(header, signing string) string {
	callback := map[string]any{"type": "http", "data": map[string]any{
		"url": "https://api.example.com/hook", "headers": map[string]any{"Authorization": map[string]any{"secret": header, "prefix": "Bearer "}},
	}}
	if signing != "" {
		callback["signing"] = signing
	}
	return with(body("a", time.Hour), "callback", callback)
}

// A callback with a missing secret is refused, in every kind of submission. The value of a secret is never shown.
func TestReferencesToSecrets(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withSecrets)
	a.call("PUT", "/v1/secrets/token", `{"value":"s3cret-token"}`).want(201)
	a.call("PUT", "/v1/secrets/elsewhere", `{"value":"s3cret-token","destinations":["http https://other.example.com"]}`).want(201)
	a.call("PUT", "/v1/secrets/here", `{"value":"s3cret-token","destinations":["http https://api.example.com"]}`).want(201)
	a.call("PUT", "/v1/secrets/of-acme", `{"value":"s3cret-token"}`, acme).want(201)
	a.call("POST", "/v1/signing-secrets", `{"name":"partner","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}`).want(201)

	a.call("POST", "/v1/jobs", hooked("of-acme", ""), acme).want(201)
	a.call("DELETE", "/v1/jobs/a", "", acme).want(200)
	a.call("POST", "/v1/jobs", hooked("token", ""), acme).want(422)
	a.call("POST", "/v1/jobs", hooked("of-acme", "partner"), acme).want(422)

	const header, signing = "/callback/data/headers/Authorization/secret", "/callback/signing"
	for name, test := range map[string]struct {
		job  string
		want []string
	}{
		"there":                 {hooked("token", "partner"), nil},
		"not signed":            {hooked("here", "none"), nil},
		"missing":               {hooked("nothing", ""), []string{header}},
		"missing, escaped":      {strings.Replace(hooked("nothing", ""), `"secret"`, `"\u0073ecret"`, 1), []string{header}},
		"of another tenant":     {hooked("of-acme", ""), []string{header}},
		"for another place":     {hooked("elsewhere", ""), []string{header}},
		"no signing secret":     {hooked("token", "default"), []string{signing}},
		"neither":               {hooked("nothing", "nothing"), []string{header, signing}},
		"a name there can't be": {hooked("token", "a b"), []string{signing}},
	} {
		t.Run(name, func(*testing.T) {
			expect := func(what string, g answer, accepted int) {
				t.Helper()
				if len(test.want) == 0 {
					g.want(accepted)
				} else if named := g.want(422).problem().named(); !slices.Equal(named, test.want) {
					t.Errorf("%s: %q are named, want %q", what, named, test.want)
				}
			}
			expect("preview", a.call("POST", "/v1/preview", test.job), 200)
			g := a.call("POST", "/v1/jobs/batch", "["+test.job+"]").want(200)
			if r := a.results(asArray, g.body); len(test.want) == 0 && r[0].Status >= 300 || len(test.want) > 0 && r[0].Status != 422 {
				t.Errorf("batch: %s", g.body)
			}
			a.call("DELETE", "/v1/jobs/a", "")
			expect("post", a.call("POST", "/v1/jobs", test.job), 201)
			a.call("DELETE", "/v1/jobs/a", "")
			expect("put", a.call("PUT", "/v1/jobs/a", test.job), 201)
		})
	}
	a.call("DELETE", "/v1/jobs/a", "") // the job of the last case
	a.call("PUT", "/v1/jobs/a", hooked("token", "partner")).want(201)
	a.patch("a", `{"callback":{"signing":"nothing"}}`).want(422)
	a.patch("a", `{"callback":{"data":{"headers":{"Authorization":{"secret":"nothing"}}}}}`).want(422)
	a.patch("a", `{"callback":{"data":{"headers":{"Authorization":{"secret":"here"}}}}}`).want(200)
	a.patch("a", `{"callback":{"data":{"headers":{"Authorization":{"secret":"token"}}}}}`).want(200)

	a.advance(2 * time.Hour)
	claimed := a.claim()
	if len(claimed) != 1 || claimed[0].Options.Signing != "partner" {
		t.Fatalf("claimed %+v", claimed)
	}
	a.settle(claimed[0], store.Bury, "failed")
	buried := a.call("GET", "/v1/dead-letters", "").want(200)
	a.call("POST", "/v1/jobs/a/trigger", "").want(202)
	a.call("DELETE", "/v1/secrets/token", "").want(204)
	a.call("POST", "/v1/dead-letters/redrive?key=a", "").want(200) // an accepted job fires, and waits for its secret
	if claimed := a.claim(); len(claimed) != 2 || claimed[0].Options.Signing != "partner" || claimed[1].Options.Signing != "partner" {
		t.Errorf("claimed %+v", claimed)
	}
	var shown strings.Builder
	shown.Write(buried.body)
	for _, path := range []string{"/v1/jobs/a", "/v1/jobs", "/v1/dead-letters", "/v1/secrets", "/v1/signing-secrets", "/v1/backlog", "/metrics"} {
		g := a.call("GET", path, "")
		fmt.Fprintf(&shown, "%s %v\n", g.body, g.header)
	}
	documents, _, err := a.store.Export(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		if d.Job != nil {
			fmt.Fprintf(&shown, "%s\n", d.Job.Callback.Data)
		}
	}
	for _, secret := range []string{"s3cret-token", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if strings.Contains(shown.String(), secret) || strings.Contains(a.log.String(), secret) {
			t.Errorf("%s is shown in %s%s", secret, shown.String(), a.log)
		}
	}
	if n := strings.Count(shown.String(), `"secret":"token"`); n != 3 {
		t.Errorf("the reference is shown %d times: %s", n, shown.String())
	}
}

// A key that may not use secrets learns by previews neither which there are, nor where they may be sent.
func TestPreviewsTellNothingOfSecrets(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t, withSecrets)
	operator, viewer := a.key(access.Operator, "", job.DefaultTenant), a.key(access.Viewer, "a", job.DefaultTenant)
	submitter := a.key(access.Submitter, "a", job.DefaultTenant)
	a.call("PUT", "/v1/secrets/token", `{"value":"s3cret-token"}`, operator).want(201)
	a.call("PUT", "/v1/secrets/elsewhere", `{"value":"s3cret-token","destinations":["http https://other.example.com"]}`, operator).want(201)
	first := a.call("POST", "/v1/preview", hooked("token", ""), viewer).want(200)
	for _, draft := range []string{hooked("nothing", ""), hooked("elsewhere", ""), hooked("token", "nothing")} {
		if got := a.call("POST", "/v1/preview", draft, viewer).want(200); !bytes.Equal(got.body, first.body) {
			t.Errorf("it is answered with %s, and with %s for a secret that exists", got.body, first.body)
		}
		a.call("POST", "/v1/preview", draft, submitter).want(422)
	}
}

// While the store is unavailable, a job that needs a secret is refused, and others are accepted.
func TestSecretsInAnOutage(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withSecrets)
	a.call("PUT", "/v1/secrets/token", `{"value":"s3cret-token"}`).want(201)
	a.store.mu.Lock()
	a.store.tenantFault = store.ErrUnavailable
	a.store.mu.Unlock()
	a.call("GET", "/v1/secrets", "").want(503)
	a.call("PUT", "/v1/jobs/a", hooked("other", "")).want(503)
	a.call("POST", "/v1/preview", hooked("token", "")).want(200) // it is known
	a.call("POST", "/v1/preview", with(body("a", time.Hour), "callback",
		map[string]any{"type": "kafka", "data": 1})).want(200)
}
