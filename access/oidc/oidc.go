// Package oidc takes the JWTs of an OpenID Connect issuer in the place of API keys: what they may do is in their
// claims. Nothing of a token is stored.
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

// Config says whose tokens are taken, and what of them counts.
type Config struct {
	// Issuer is the URL of the issuer, exactly as it stands in its tokens.
	Issuer string
	// Audience is who the tokens must be meant for.
	Audience string
	// RoleClaim is the claim with the role, or a list with roles: of these, the one with the most permissions counts, and
	// what is no role does not count. TenantsClaim is the claim with the name of a tenant, or a list of names, or "*" for
	// all tenants. A claim within another has a path of names with dots between them.
	RoleClaim, TenantsClaim string
	// Logger is told when the issuer can't be reached; nil is [slog.Default].
	Logger *slog.Logger
	// Transport makes the requests to the issuer; nil is [http.DefaultTransport].
	Transport http.RoundTripper
}

// Skew is by how much the issuer's clock and ours may differ: a token is valid for so much longer, and so much earlier.
const Skew = 30 * time.Second

const (
	// patience is how long the issuer may take to answer.
	patience = 5 * time.Second
	// retryAfter is how long the issuer is left alone after it could not be reached, or has told its keys.
	retryAfter = 5 * time.Second
	// renewAfter is how long the issuer's keys are used before they are asked for again, so that one that it has
	// withdrawn is not valid for ever; renewAgain is when, if it could not be reached.
	renewAfter = time.Hour
	renewAgain = time.Minute
	// longestToken and longestSubject bound what is read of a token, in bytes.
	longestToken   = 16 << 10
	longestSubject = 255
)

// algorithms are those that tokens may be signed by: the ones with public keys. With any other, whoever knows the
// issuer's public key could sign, or anybody.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
}

// Tokens tells whose a token of the issuer is. It implements [access.Authenticator].
type Tokens struct {
	config Config

	mutex    sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until the issuer has been reached
	attempt  *attempt              // to reach it; the last one, if it is over
}

// attempt is one to reach the issuer. It is over when done is closed.
type attempt struct {
	began time.Time
	done  chan struct{}
	err   error
}

// Check answers an error that begins with the name of the field that is wrong: issuer, audience, role-claim or
// tenants-claim.
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

// New makes an authenticator, and begins to look for the issuer, which need not be there. The error is that of
// [Config.Check].
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

// checkURL refuses a URL whose answer could be replaced on its way.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be a URL such as https://login.example.com, as it stands in the tokens")
	}
	loopback := u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return errors.New("must begin with https://; http:// is for an issuer on this machine only")
	}
	return nil
}

// Knows implements [access.Authenticator]: of all tokens, since their signatures are checked here.
func (*Tokens) Knows(string, time.Time) bool { return true }

// Authenticate implements [access.Authenticator].
func (t *Tokens) Authenticate(ctx context.Context, token string, now time.Time) (access.Principal, error) {
	// What can't be a JWT asks nobody anything.
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
		ID:    "oidc:" + verified.Subject, // no key has such an id
		Role:  claims.role(t.config.RoleClaim),
		Scope: access.Scope{Tenants: claims.tenants(t.config.TenantsClaim)},
	}, nil
}

func validSubject(s string) bool {
	return s != "" && len(s) <= longestSubject && strings.IndexFunc(s, unicode.IsControl) < 0
}

// reached is what verifies tokens, once the issuer has been reached.
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

// reach has an attempt to reach the issuer made in the background, unless one is under way or was made just now.
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
			t.config.Logger.Warn("the issuer of tokens can't be reached, and is tried again; API keys are valid meanwhile",
				"issuer", t.config.Issuer, "error", err)
		}
	}()
	return a
}

// discover asks the issuer where its keys are.
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
		SkipExpiryCheck: true, // it would not allow for clocks that differ
	}), nil
}

// claims are what a token says.
type claims map[string]any

// current tells whether the token is valid by its times. One without an end is not.
func (c claims) current(now time.Time) bool {
	end, ends := c["exp"].(float64)
	begin, begins := c["nbf"].(float64)
	if _, there := c["nbf"]; there && !begins {
		return false
	}
	at := float64(now.UnixMilli()) / 1000
	return ends && at < end+Skew.Seconds() && (!begins || at >= begin-Skew.Seconds())
}

// role is the one with the most permissions that a claim has; none if it has none.
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

// tenants are those that a claim names.
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

// texts are the texts of a claim: one, or those of a list.
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

// find is the claim of a name, or of the path of names in it; nil if there is none. Names may have dots in them.
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
