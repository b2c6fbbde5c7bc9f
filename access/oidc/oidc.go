// Package oidc authenticates by JWTs of an OpenID Connect issuer instead of API keys. Role and tenants are claims of
// the token. Tokens are not stored.
package oidc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Config has the accepted issuer and the names of the claims.
type Config struct {
	// Issuer is the URL of the issuer, exactly as in its tokens.
	Issuer string
	// Audience is the audience that tokens must have.
	Audience string
	// RoleClaim is the claim with the role or with a list of roles. Of a list, the role with the most permissions counts;
	// unknown roles are ignored. TenantsClaim is the claim with the name of a tenant, or a list of names, or "*" for all
	// tenants. A nested claim is named by a path with dots between the names.
	RoleClaim, TenantsClaim string
	// Logger logs that the issuer can't be reached; nil is [slog.Default].
	Logger *slog.Logger
	// Transport makes the requests to the issuer; nil is [http.DefaultTransport].
	Transport http.RoundTripper
}

// Skew is the permitted difference of the issuer's clock and ours: a token becomes valid that much earlier, and stays
// valid that much longer.
const Skew = 30 * time.Second

const (
	// patience is the time limit of a request to the issuer.
	patience = 5 * time.Second
	// retryAfter is the pause after a failed request to the issuer, and after a request for its keys.
	retryAfter = 5 * time.Second
	// renewAfter is the age at which the issuer's keys are fetched again, so that a withdrawn key does not stay valid for
	// ever. renewAgain is the pause if the issuer could not be reached then.
	renewAfter = time.Hour
	renewAgain = time.Minute
	// longestToken and longestSubject bound a token and its subject, in bytes.
	longestToken   = 16 << 10
	longestSubject = 255
)

// algorithms are the accepted signature algorithms: only those with public keys. With any other, anyone, or anyone with
// the issuer's public key, could sign tokens.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// Tokens authenticates by the issuer's tokens. It implements [access.Authenticator].
type Tokens struct {
	config Config

	mutex    sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the issuer has been reached
	attempt  *attempt              // the present or last attempt to reach it
}

// attempt is an attempt to reach the issuer. It is over when done is closed.
type attempt struct {
	began time.Time
	done  chan struct{}
	err   error
}

// Check returns an error that begins with the name of the wrong field: issuer, audience, role-claim or tenants-claim.
func (c *Config) Check() error {
	if err := checkURL(c.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	switch {
	case c.Audience == "":
		return errors.New("audience: is required, else tokens that the issuer has made for others would be valid here")
	case c.RoleClaim == "":
		return errors.New("role-claim: is required")
	case c.TenantsClaim == "":
		return errors.New("tenants-claim: is required")
	}
	return nil
}

// New makes an authenticator, and starts to contact the issuer, which need not be reachable yet. The error is the one
// of [Config.Check].
func New(c Config) (*Tokens, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Transport == nil {
		c.Transport = http.DefaultTransport
	}
	t := &Tokens{config: c}
	t.reach()
	return t, nil
}

// checkURL refuses a URL whose answer could be forged in transit.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be a URL such as https://login.example.com, exactly as in the tokens")
	}
	loopback := u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return errors.New("must begin with https://; http:// is for an issuer on this machine only")
	}
	return nil
}

// Knows implements [access.Authenticator]. It returns true: checking a signature needs no look-up.
func (*Tokens) Knows(string, time.Time) bool { return true }

// Authenticate implements [access.Authenticator].
func (t *Tokens) Authenticate(ctx context.Context, token string, now time.Time) (access.Principal, error) {
	// A text that can't be a JWT causes no request to the issuer.
	if strings.Count(token, ".") != 2 || len(token) > longestToken {
		return access.Principal{}, access.ErrUnauthenticated
	}
	verifier, err := t.reached(ctx)
	if err != nil {
		return access.Principal{}, fmt.Errorf("%w: the issuer of tokens: %w", store.ErrUnavailable, err)
	}
	var outcome error
	verified, err := verifier.Verify(context.WithValue(ctx, outcomeKey{}, &outcome), token)
	switch {
	case err != nil && outcome != nil && errors.Is(outcome, errIssuer):
		return access.Principal{}, fmt.Errorf("%w: the issuer of tokens: %w", store.ErrUnavailable, outcome)
	case err != nil:
		return access.Principal{}, access.ErrUnauthenticated
	}
	claims := make(claims)
	if err := verified.Claims(&claims); err != nil || !claims.current(now) || !validSubject(verified.Subject) {
		return access.Principal{}, access.ErrUnauthenticated
	}
	return access.Principal{
		ID:    "oidc:" + verified.Subject, // no API key has an id of this form
		Role:  claims.role(t.config.RoleClaim),
		Scope: access.Scope{Tenants: claims.tenants(t.config.TenantsClaim)},
	}, nil
}

func validSubject(s string) bool {
	return s != "" && len(s) <= longestSubject && strings.IndexFunc(s, unicode.IsControl) < 0
}

// reached returns the verifier of tokens, once the issuer has been reached.
func (t *Tokens) reached(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	t.mutex.Lock()
	verifier := t.verifier
	t.mutex.Unlock()
	if verifier != nil {
		return verifier, nil
	}
	a := t.reach()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.verifier == nil {
		return nil, a.err
	}
	return t.verifier, nil
}

// reach starts an attempt to reach the issuer in the background, unless one is under way or was made a moment ago.
func (t *Tokens) reach() *attempt {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if a := t.attempt; a != nil && (t.verifier != nil || time.Since(a.began) < patience+retryAfter) {
		return a
	}
	a := &attempt{began: time.Now(), done: make(chan struct{})}
	t.attempt = a
	go func() {
		verifier, err := discover(t.config)
		t.mutex.Lock()
		t.verifier, a.err = verifier, err
		t.mutex.Unlock()
		close(a.done)
		if err != nil {
			t.config.Logger.Warn("the issuer of tokens can't be reached, retrying; API keys stay valid",
				"issuer", t.config.Issuer, "error", err)
		}
	}()
	return a
}

// discover asks the issuer for the location of its keys.
func discover(c Config) (*oidc.IDTokenVerifier, error) {
	client := &http.Client{Timeout: patience, Transport: &transport{to: c.Transport}}
	ctx := oidc.ClientContext(context.Background(), client)
	provider, err := oidc.NewProvider(ctx, c.Issuer)
	if err != nil {
		return nil, err
	}
	var endpoints struct {
		Keys string `json:"jwks_uri"`
	}
	if err := provider.Claims(&endpoints); err != nil {
		return nil, err
	}
	if err := checkURL(endpoints.Keys); err != nil {
		return nil, fmt.Errorf("jwks_uri %w", err)
	}
	return oidc.NewVerifier(c.Issuer, newKeySet(endpoints.Keys, c.Transport), &oidc.Config{
		ClientID: c.Audience, SupportedSigningAlgs: algorithms,
		SkipExpiryCheck: true, // it would not allow clock skew
	}), nil
}

// claims are the claims of a token.
type claims map[string]any

// current reports whether the token is valid at a time. A token without an expiry is not.
func (c claims) current(now time.Time) bool {
	end, ends := c["exp"].(float64)
	begin, begins := c["nbf"].(float64)
	if _, there := c["nbf"]; there && !begins {
		return false
	}
	at := float64(now.UnixMilli()) / 1000
	return ends && at < end+Skew.Seconds() && (!begins || at >= begin-Skew.Seconds())
}

// role returns the role with the most permissions in a claim; "" if there is none.
func (c claims) role(path string) (role access.Role) {
	has := make(map[string]bool)
	for _, text := range c.texts(path) {
		has[text] = true
	}
	for _, r := range access.Roles() {
		if has[string(r)] {
			role = r
		}
	}
	return role
}

// tenants returns the tenants in a claim.
func (c claims) tenants(path string) (tenants []string) {
	for _, name := range c.texts(path) {
		if name == access.AllTenants {
			return []string{access.AllTenants}
		}
		if job.ValidTenant(name) && len(tenants) < access.MaxKeyTenants {
			tenants = append(tenants, name)
		}
	}
	return tenants
}

// texts returns the texts of a claim, which has one text or a list.
func (c claims) texts(path string) (texts []string) {
	switch value := c.find(path).(type) {
	case string:
		return []string{value}
	case []any:
		for _, v := range value {
			if text, is := v.(string); is {
				texts = append(texts, text)
			}
		}
	}
	return texts
}

// find returns the claim of a name or of a path; nil if there is none. Names may contain dots.
func (c claims) find(path string) any {
	if value, ok := c[path]; ok {
		return value
	}
	name, rest, more := strings.Cut(path, ".")
	if within, ok := c[name].(map[string]any); ok && more {
		return claims(within).find(rest)
	}
	return nil
}
