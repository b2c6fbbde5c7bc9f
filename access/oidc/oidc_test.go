package oidc_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/oidc"
	"github.com/carillon-scheduler/carillon/store"
)

var epoch = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// issuer is an OpenID Connect issuer.
type issuer struct {
	testing.TB
	url string

	mutex   sync.Mutex
	keys    jose.JSONWebKeySet // public ones
	away    bool
	fetched int // how often its keys were asked for
}

// ServeHTTP serves the documents of the issuer.
func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case i.away:
		http.Error(w, `{"error": "away"}`, http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.url, "jwks_uri": i.url + "/keys", "authorization_endpoint": i.url + "/auth", "token_endpoint": i.url + "/token",
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	case r.URL.Path == "/keys":
		i.fetched++
		_ = json.NewEncoder(w).Encode(i.keys)
	default:
		http.NotFound(w, r)
	}
}

// RoundTrip answers a request without a network, so that the clock of a test can be virtual.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w.Result(), nil
}

func (i *issuer) change(f func()) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	f()
}

func (i *issuer) fetches() int {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.fetched
}

// signer is a private key of the issuer.
type signer struct {
	id  string
	alg jose.SignatureAlgorithm
	key any
}

// publish has the issuer publish these keys and no others.
func (i *issuer) publish(signers ...signer) {
	i.change(func() {
		i.keys.Keys = nil
		for _, s := range signers {
			i.keys.Keys = append(i.keys.Keys, jose.JSONWebKey{
				Key: s.key.(crypto.Signer).Public(), KeyID: s.id, Algorithm: string(s.alg), Use: "sig",
			})
		}
	})
}

// sign makes a token with claims.
func (s signer) sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", s.id)
	by, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: s.key}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := by.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// An RSA key takes long to make.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func rs256(id string) signer { return signer{id, jose.RS256, rsaKey()} }

func es256(t testing.TB, id string) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{id, jose.ES256, key}
}

func eddsa(t testing.TB, id string) signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{id, jose.EdDSA, key}
}

// claims returns the claims of a valid token, with others in their place.
func (i *issuer) claims(others map[string]any) map[string]any {
	all := map[string]any{
		"iss": i.url, "aud": "carillon", "sub": "ada", "iat": epoch.Unix(), "exp": epoch.Add(time.Hour).Unix(),
		"carillon_role": "operator", "carillon_tenants": []string{"acme", "bolt"},
	}
	maps.Copy(all, others)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func (i *issuer) config() oidc.Config {
	return oidc.Config{
		Issuer: i.url, Audience: "carillon", RoleClaim: "carillon_role", TenantsClaim: "carillon_tenants",
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func (i *issuer) tokens(c oidc.Config) *oidc.Tokens {
	i.Helper()
	tokens, err := oidc.New(c)
	if err != nil {
		i.Fatal(err)
	}
	return tokens
}

// serve starts an issuer on this machine.
func serve(t testing.TB) *issuer {
	i := &issuer{TB: t}
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.url = server.URL
	return i
}

func TestTokens(t *testing.T) {
	i := serve(t)
	rs, es, ed := rs256("rs"), es256(t, "es"), eddsa(t, "ed")
	i.publish(rs, es, ed)
	tokens := i.tokens(i.config())
	for _, s := range []signer{rs, es, ed, {"rs", jose.PS384, rsaKey()}} {
		i.change(func() { i.keys.Keys[0].Algorithm = "" })
		got, err := tokens.Authenticate(t.Context(), s.sign(t, i.claims(nil)), epoch)
		want := access.Principal{
			ID: "oidc:ada", Role: access.Operator, Scope: access.Scope{Tenants: []string{"acme", "bolt"}},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", s.alg, got, err, want)
		}
	}
	if n := i.fetches(); n != 1 {
		t.Errorf("the keys were fetched %d times, want once", n)
	}
}

func TestClaims(t *testing.T) {
	i := serve(t)
	key := es256(t, "es")
	i.publish(key)
	type want struct {
		role    access.Role
		tenants []string
	}
	for name, c := range map[string]struct {
		configure func(*oidc.Config)
		claims    map[string]any
		want      want
	}{
		"one of each":            {nil, map[string]any{"carillon_role": "viewer", "carillon_tenants": "acme"}, want{access.Viewer, []string{"acme"}}},
		"all tenants":            {nil, map[string]any{"carillon_tenants": "*"}, want{access.Operator, []string{"*"}}},
		"all tenants in a list":  {nil, map[string]any{"carillon_tenants": []string{"acme", "*"}}, want{access.Operator, []string{"*"}}},
		"several roles":          {nil, map[string]any{"carillon_role": []any{"viewer", "dba", 7, "submitter"}}, want{access.Submitter, []string{"acme", "bolt"}}},
		"no role":                {nil, map[string]any{"carillon_role": nil}, want{"", []string{"acme", "bolt"}}},
		"another role":           {nil, map[string]any{"carillon_role": "Admin"}, want{"", []string{"acme", "bolt"}}},
		"a role of another kind": {nil, map[string]any{"carillon_role": map[string]any{"admin": true}}, want{"", []string{"acme", "bolt"}}},
		"no tenants":             {nil, map[string]any{"carillon_tenants": nil}, want{access.Operator, nil}},
		"no names of tenants":    {nil, map[string]any{"carillon_tenants": []any{"", "a/b", 7, "ok"}}, want{access.Operator, []string{"ok"}}},
		"nested": {
			func(c *oidc.Config) { c.RoleClaim, c.TenantsClaim = "realm_access.roles", "resource.carillon.tenants" },
			map[string]any{
				"realm_access": map[string]any{"roles": []string{"admin"}},
				"resource":     map[string]any{"carillon": map[string]any{"tenants": "acme"}},
			},
			want{access.Admin, []string{"acme"}},
		},
		"names with dots": {
			func(c *oidc.Config) { c.RoleClaim = "https://example.com/roles" },
			map[string]any{"https://example.com/roles": "admin"},
			want{access.Admin, []string{"acme", "bolt"}},
		},
		"a path to nothing": {
			func(c *oidc.Config) { c.RoleClaim = "a.b.c" },
			map[string]any{"a": map[string]any{"b": "admin"}},
			want{"", []string{"acme", "bolt"}},
		},
		"several audiences": {nil, map[string]any{"aud": []string{"another", "carillon"}}, want{access.Operator, []string{"acme", "bolt"}}},
	} {
		config := i.config()
		if c.configure != nil {
			c.configure(&config)
		}
		got, err := i.tokens(config).Authenticate(t.Context(), key.sign(t, i.claims(c.claims)), epoch)
		if err != nil || got.Role != c.want.role || !reflect.DeepEqual(got.Scope.Tenants, c.want.tenants) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestWrongTokens(t *testing.T) {
	i := serve(t)
	rs, es := rs256("rs"), es256(t, "es")
	i.publish(rs, es)
	tokens := i.tokens(i.config())
	good := rs.sign(t, i.claims(nil))
	part := strings.Split(good, ".")
	text := base64.RawURLEncoding.EncodeToString
	unsigned := func(header string) string { return text([]byte(header)) + "." + part[1] + "." }
	public, err := x509.MarshalPKIXPublicKey(rsaKey().Public())
	if err != nil {
		t.Fatal(err)
	}
	// hs256 takes the issuer's public key for a shared secret.
	hs256 := func(secret []byte) string {
		body := text([]byte(`{"alg":"HS256","kid":"rs","typ":"JWT"}`)) + "." + part[1]
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(body))
		return body + "." + text(mac.Sum(nil))
	}
	of := func(claims map[string]any) string { return rs.sign(t, i.claims(claims)) }
	for name, token := range map[string]string{
		"nothing": "", "no JWT": "abc", "two parts": part[0] + "." + part[1], "four parts": good + ".x", "API key": "carillon_x",
		"other audience": of(map[string]any{"aud": "another"}), "no audience": of(map[string]any{"aud": nil}),
		"other issuer": of(map[string]any{"iss": "https://evil.example"}), "no issuer": of(map[string]any{"iss": nil}),
		"issuer and more": of(map[string]any{"iss": i.url + "/"}),
		"expired":         of(map[string]any{"exp": epoch.Add(-oidc.Skew).Unix()}), "without an end": of(map[string]any{"exp": nil}),
		"an end that is none":      of(map[string]any{"exp": "never"}),
		"of the future":            of(map[string]any{"nbf": epoch.Add(oidc.Skew + time.Second).Unix()}),
		"a beginning that is none": of(map[string]any{"nbf": "now"}),
		"no subject":               of(map[string]any{"sub": nil}), "subject of two lines": of(map[string]any{"sub": "a\nb"}),
		"long subject":   of(map[string]any{"sub": strings.Repeat("x", 256)}),
		"signed by none": unsigned(`{"alg":"none"}`), "signed by None": unsigned(`{"alg":"None","kid":"rs"}`),
		"HS256 with the public key in PEM": hs256(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"HS256 with the public key in DER": hs256(public),
		"HS256 with nothing":               hs256(nil),
		"signed by another":                es256(t, "es").sign(t, i.claims(nil)),
		"signed by another, of no name":    es256(t, "").sign(t, i.claims(nil)),
		"other claims":                     part[0] + "." + text([]byte(`{"sub":"eve"}`)) + "." + part[2],
		"without a signature":              part[0] + "." + part[1] + ".",
		"signature cut off":                good[:len(good)-2],
		"signature of another token":       part[0] + "." + part[1] + "." + strings.Split(of(map[string]any{"sub": "eve"}), ".")[2],
		"too long":                         of(map[string]any{"x": strings.Repeat("x", 20_000)}),
		"no claims":                        rs.sign(t, nil),
		"doubled":                          good + good,
	} {
		if p, err := tokens.Authenticate(t.Context(), token, epoch); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	if _, err := tokens.Authenticate(t.Context(), good, epoch); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

// A token is valid a little longer, and earlier, than it says, since clocks differ.
func TestSkew(t *testing.T) {
	i := serve(t)
	key := es256(t, "es")
	i.publish(key)
	tokens := i.tokens(i.config())
	token := key.sign(t, i.claims(map[string]any{"nbf": epoch.Unix(), "exp": epoch.Add(time.Minute).Unix()}))
	for at, valid := range map[time.Duration]bool{
		-oidc.Skew - time.Millisecond: false, -oidc.Skew: true, 0: true, time.Minute: true,
		time.Minute + oidc.Skew - time.Millisecond: true, time.Minute + oidc.Skew: false,
	} {
		if _, err := tokens.Authenticate(t.Context(), token, epoch.Add(at)); (err == nil) != valid {
			t.Errorf("at %s: %v", at, err)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*oidc.Config)
		want   string // begins the error; none for no error
	}{
		"right":               {func(*oidc.Config) {}, ""},
		"on this machine":     {func(c *oidc.Config) { c.Issuer = "http://[::1]:1/realms/x" }, ""},
		"no issuer":           {func(c *oidc.Config) { c.Issuer = "" }, "issuer: "},
		"no URL":              {func(c *oidc.Config) { c.Issuer = "login.example.com" }, "issuer: "},
		"without TLS":         {func(c *oidc.Config) { c.Issuer = "http://login.example.com" }, "issuer: must begin with https://"},
		"another scheme":      {func(c *oidc.Config) { c.Issuer = "ftp://127.0.0.1" }, "issuer: must begin with https://"},
		"with a password":     {func(c *oidc.Config) { c.Issuer = "https://a:b@login.example.com" }, "issuer: "},
		"with a query":        {func(c *oidc.Config) { c.Issuer = "https://login.example.com?a=b" }, "issuer: "},
		"no audience":         {func(c *oidc.Config) { c.Audience = "" }, "audience: "},
		"no claim of a role":  {func(c *oidc.Config) { c.RoleClaim = "" }, "role-claim: "},
		"no claim of tenants": {func(c *oidc.Config) { c.TenantsClaim = "" }, "tenants-claim: "},
	} {
		i := &issuer{TB: t, url: "https://login.example.com", away: true}
		config := i.config()
		config.Transport = i
		c.change(&config)
		switch _, err := oidc.New(config); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// virtual returns an issuer without a network, and a key of it.
func virtual(t testing.TB) (*issuer, oidc.Config, signer) {
	i := &issuer{TB: t, url: "https://login.example.com"}
	key := es256(t, "first")
	i.publish(key)
	config := i.config()
	config.Transport = i
	return i, config, key
}

// expect checks the result of a token.
func (i *issuer) expect(what string, tokens *oidc.Tokens, token string, want error) {
	i.Helper()
	if _, err := tokens.Authenticate(i.Context(), token, epoch); !errors.Is(err, want) {
		i.Errorf("%s: %v, want %v", what, err, want)
	}
}

// An issuer that is not there at the start is found later, and is not asked again by each token.
func TestIssuerAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, config, key := virtual(t)
		i.away = true
		tokens := i.tokens(config)
		token := key.sign(t, i.claims(nil))
		for range 100 {
			i.expect("away", tokens, token, store.ErrUnavailable)
			time.Sleep(100 * time.Millisecond)
		}
		i.expect("no JWT, away", tokens, "x", access.ErrUnauthenticated)
		i.change(func() { i.away = false })
		time.Sleep(10 * time.Second)
		i.expect("back", tokens, token, nil)
	})
}

// An issuer that goes away later is not missed, until a token has a key that is not known.
func TestIssuerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, config, key := virtual(t)
		tokens := i.tokens(config)
		token := key.sign(t, i.claims(nil))
		i.expect("there", tokens, token, nil)
		i.change(func() { i.away = true })
		for range 100 {
			time.Sleep(10 * time.Minute)
			i.expect("away", tokens, token, nil)
		}
		time.Sleep(10 * time.Second)
		i.expect("with a key that is not known", tokens, es256(t, "second").sign(t, i.claims(nil)), store.ErrUnavailable)
		i.expect("with one that is", tokens, token, nil)
	})
}

// The issuer changes its keys: a new one is accepted at once, and a withdrawn one not for long. Tokens with unpublished
// keys do not cause a request to the issuer each.
func TestKeysChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, config, first := virtual(t)
		tokens := i.tokens(config)
		old := first.sign(t, i.claims(nil))
		i.expect("the first key", tokens, old, nil)
		time.Sleep(time.Minute)
		second := es256(t, "second")
		i.publish(first, second)
		i.expect("the second key", tokens, second.sign(t, i.claims(nil)), nil)
		before := i.fetches()
		for range 600 {
			i.expect("a key of nobody", tokens, es256Of(second, "third").sign(t, i.claims(nil)), access.ErrUnauthenticated)
			i.expect("the second key", tokens, second.sign(t, i.claims(nil)), nil)
			time.Sleep(100 * time.Millisecond)
		}
		if n := i.fetches() - before; n > 12 {
			t.Errorf("a minute of wrong tokens had the keys fetched %d times", n)
		}
		i.publish(second)
		time.Sleep(time.Hour)
		i.expect("the first key, withdrawn an hour ago", tokens, old, access.ErrUnauthenticated)
		i.expect("the second key then", tokens, second.sign(t, i.claims(nil)), nil)
	})
}

// es256Of returns the same private key under another name.
func es256Of(s signer, id string) signer { return signer{id, s.alg, s.key} }

// An answer that is not from the issuer, or is malformed, is refused.
func TestWrongIssuers(t *testing.T) {
	for name, answer := range map[string]string{
		"another issuer":   `{"issuer": "https://evil.example", "jwks_uri": "https://login.example.com/keys"}`,
		"keys without TLS": `{"issuer": "https://login.example.com", "jwks_uri": "http://login.example.com/keys"}`,
		"no keys":          `{"issuer": "https://login.example.com"}`,
		"no JSON":          `<html>`,
		"long":             `{"issuer": "https://login.example.com", "x": "` + strings.Repeat("x", 2<<20) + `"}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			i, config, key := virtual(t)
			config.Transport = answering(answer)
			i.expect(name, i.tokens(config), key.sign(t, i.claims(nil)), store.ErrUnavailable)
		})
	}
}

// answering answers every request so.
type answering string

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, string(a))
	return w.Result(), nil
}
