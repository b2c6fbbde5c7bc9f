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

// errIssuer is that the issuer could not be reached, or gave no answer that can be used.
var errIssuer = errors.New("it can't be reached")

// errTooSoon is that the issuer was asked for its keys just now: a token with an unknown key makes nobody ask again.
var errTooSoon = errors.New("its keys were fetched just now")

// outcomeKey is the key of a context's *error, in which a keySet notes what it has answered: the verifier only passes
// on the text.
type outcomeKey struct{}

// keySet is the issuer's public keys. The library caches them, and asks for them again when a token has an unknown key;
// here they are asked for every hour too, and not too often.
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

// fresh is a set that asks for the keys when it is first used.
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

// current are the keys, and whether the one who asks is to have them fetched again. Others go on with these.
func (s *keySet) current() (keys oidc.KeySet, due bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	due = !s.renewing && !time.Now().Before(s.renewAt)
	s.renewing = s.renewing || due
	return s.keys, due
}

// renew has keys used for some time.
func (s *keySet) renew(keys oidc.KeySet, d time.Duration) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.keys, s.renewAt, s.renewing = keys, time.Now().Add(d), false
}

// transport fetches JSON documents that are not large. All else that comes of a request is an errIssuer.
type transport struct {
	to http.RoundTripper
	// pause is how long after a request the next one is refused.
	pause time.Duration

	mutex  sync.Mutex
	last   time.Time // when a request was made last
	failed error     // how it failed, if it did
}

// largestDocument bounds what is read of the issuer, in bytes.
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

// begin notes a request, or refuses it.
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

// fetch fetches a document whole.
func fetch(to http.RoundTripper, r *http.Request) (*http.Response, error) {
	answer, err := to.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK { // a redirect too: the issuer is who answers at its URL
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
