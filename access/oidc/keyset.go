package oidc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-json-experiment/json/jsontext"
)

// errIssuer is the error if the issuer could not be reached, or its answer is unusable.
var errIssuer = errors.New("it can't be reached")

// errTooSoon is the error of a request too soon after the last one: a token with an unknown key causes no further
// request.
var errTooSoon = errors.New("its keys were fetched a moment ago")

// outcomeKey is the key of a context's *error. A keySet stores its error there, since the verifier passes on only the
// text.
type outcomeKey struct{}

// keySet has the issuer's public keys. The library caches them, and fetches them again when a token has an unknown key.
// A keySet also fetches them every hour, and bounds the rate of fetches.
type keySet struct {
	url    string
	client *http.Client

	mutex    sync.Mutex
	keys     oidc.KeySet
	renewAt  time.Time
	renewing bool
}

func newKeySet(url string, to http.RoundTripper) *keySet {
	s := &keySet{url: url, client: &http.Client{Timeout: patience, Transport: &transport{to: to, pause: retryAfter}}}
	s.keys, s.renewAt = s.fresh(), time.Now().Add(renewAfter)
	return s
}

// fresh returns a set that fetches the keys at its first use.
func (s *keySet) fresh() oidc.KeySet {
	return oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), s.client), s.url)
}

// VerifySignature implements [oidc.KeySet].
func (s *keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := s.verify(ctx, jwt)
	if outcome, ok := ctx.Value(outcomeKey{}).(*error); ok {
		*outcome = err
	}
	return payload, err
}

func (s *keySet) verify(ctx context.Context, jwt string) ([]byte, error) {
	keys, due := s.current()
	if !due {
		return keys.VerifySignature(ctx, jwt)
	}
	fresh := s.fresh()
	payload, err := fresh.VerifySignature(ctx, jwt)
	if errors.Is(err, errIssuer) || errors.Is(err, errTooSoon) || ctx.Err() != nil {
		s.renew(keys, renewAgain)
		return keys.VerifySignature(ctx, jwt)
	}
	s.renew(fresh, renewAfter)
	return payload, err
}

// current returns the keys, and whether the caller must renew them. Other callers continue with these keys.
func (s *keySet) current() (keys oidc.KeySet, due bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	due = !s.renewing && !time.Now().Before(s.renewAt)
	s.renewing = s.renewing || due
	return s.keys, due
}

// renew sets the keys and the time until their next renewal.
func (s *keySet) renew(keys oidc.KeySet, d time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.keys, s.renewAt, s.renewing = keys, time.Now().Add(d), false
}

// transport fetches JSON documents of bounded size. Any other result of a request is an errIssuer.
type transport struct {
	to http.RoundTripper
	// pause is the time after a request in which the next one is refused.
	pause time.Duration

	mutex  sync.Mutex
	last   time.Time // time of the last request
	failed error     // error of the last request, if it failed
}

// largestDocument bounds an answer of the issuer, in bytes.
const largestDocument = 1 << 20

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.begin(); err != nil {
		return nil, err
	}
	answer, err := fetch(t.to, r)
	if err != nil {
		err = fmt.Errorf("%w: %w", errIssuer, err)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.failed = err
	return answer, err
}

// begin records a request, or refuses it.
func (t *transport) begin() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := time.Now()
	if now.Sub(t.last) >= t.pause {
		t.last = now
		return nil
	}
	if t.failed != nil {
		return t.failed
	}
	return errTooSoon
}

// fetch fetches a whole document.
func fetch(to http.RoundTripper, r *http.Request) (*http.Response, error) {
	answer, err := to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK { // also for a redirect: the issuer must answer at its own URL
		return nil, fmt.Errorf("it answers %s", answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, largestDocument+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > largestDocument:
		return nil, fmt.Errorf("its answer is larger than %d bytes", largestDocument)
	case !jsontext.Value(body).IsValid():
		return nil, errors.New("its answer is not JSON")
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	return answer, nil
}
