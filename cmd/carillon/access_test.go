package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// An API key and an issuer's token are taken side by side. While the issuer is away, keys are.
func TestKeysAndTokens(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	issuer := httptest.NewServer(mux)
	defer issuer.Close()
	answer := func(path string, document any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(document)
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"})
	answer("/keys", jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token := func(of, role string, tenants ...string) string {
		t.Helper()
		claims, err := json.Marshal(map[string]any{
			"iss": of, "aud": "carillon", "sub": "ada", "exp": time.Now().Add(time.Hour).Unix(), "roles": []string{role}, "orgs": tenants,
		})
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(claims)
		if err != nil {
			t.Fatal(err)
		}
		text, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	url := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
	stdout, _ := carillon(t, 0, "keys", "create", "--store="+url, "--role=admin")
	key := strings.TrimSpace(stdout)

	away := httptest.NewServer(nil)
	away.Close()
	for _, c := range []struct {
		issuer string
		want   map[string]int // the status of a list of jobs, by credential
	}{
		{issuer.URL, map[string]int{
			key: 200, token(issuer.URL, "viewer", "default"): 200, token(issuer.URL, "dba", "default"): 403,
			token(issuer.URL, "viewer"): 403, token("https://login.example.com", "viewer", "default"): 401, "": 401, key + "x": 401,
		}},
		{away.URL, map[string]int{key: 200, token(away.URL, "viewer", "default"): 503}},
	} {
		options, err := service.Configure(map[string]string{
			"store": url, "auth": "keys", "oidc-issuer": c.issuer, "oidc-audience": "carillon", "oidc-role-claim": "roles",
			"oidc-tenants-claim": "orgs",
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := service.New(t.Context(), options, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		api, stop, err := s.Start(t.Context(), s.Serve)
		if err != nil {
			t.Fatal(err)
		}
		for credential, want := range c.want {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api+"/v1/jobs", nil)
			if err != nil {
				t.Fatal(err)
			}
			if credential != "" {
				request.Header.Set("Authorization", "Bearer "+credential)
			}
			got, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = got.Body.Close()
			if got.StatusCode != want {
				t.Errorf("%q is answered %s, want %d", credential, got.Status, want)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
