// Package receive is for receivers of Carillon's webhooks: it verifies signatures by Standard Webhooks, and drops
// duplicates. It needs the standard library only.
package receive

import (
	"bytes"
	"container/list"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config configures a receiver.
type Config struct {
	// Secrets are signing secrets, whsec_ and base64. A delivery that one of them signed is genuine.
	Secrets []string
	// PublicKeys are keys of signing secrets with Ed25519, whpk_ and base64. They verify signatures of the version v1a.
	PublicKeys []string
	// Tolerance is the largest difference between the time of an attempt and now; 0 means 5 min.
	Tolerance time.Duration
	// MaxBody bounds the bytes of a body; 0 means 1 MiB. A longer one is answered with 413.
	MaxBody int64
	// Remember is the number of latest delivery ids that are remembered; 0 means 100,000, which take about 20 MB.
	// Duplicates come soon after the first, in all but rare cases. A process that restarts remembers none: keep the ids in
	// a database if a duplicate does harm.
	Remember int
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
}

// Receiver verifies deliveries and drops duplicates. It is safe for concurrent use.
type Receiver struct {
	config  Config
	secrets [][]byte
	keys    []ed25519.PublicKey
	seen    seen
}

// New makes a receiver. It needs a secret or a public key at least.
func New(config Config) (*Receiver, error) {
	if config.Tolerance <= 0 {
		config.Tolerance = 5 * time.Minute
	}
	if config.MaxBody <= 0 {
		config.MaxBody = 1 << 20
	}
	if config.Remember <= 0 {
		config.Remember = 100_000
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	r := &Receiver{config: config, seen: seen{limit: config.Remember, ids: make(map[string]*list.Element)}}
	for i, text := range config.Secrets {
		secret, err := decode(text, "whsec_")
		if err != nil || len(secret) == 0 {
			return nil, fmt.Errorf("receive: Secrets[%d]: must be whsec_ and base64", i) // without the secret
		}
		r.secrets = append(r.secrets, secret)
	}
	for i, text := range config.PublicKeys {
		key, err := decode(text, "whpk_")
		if err != nil || len(key) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("receive: PublicKeys[%d]: must be whpk_ and the base64 of 32 bytes", i)
		}
		r.keys = append(r.keys, key)
	}
	if len(r.secrets)+len(r.keys) == 0 {
		return nil, errors.New("receive: neither Secrets nor PublicKeys are given, so nothing could be verified")
	}
	return r, nil
}

func decode(text, prefix string) ([]byte, error) {
	return base64.StdEncoding.DecodeString(strings.TrimPrefix(text, prefix))
}

// ErrNotGenuine is the error of a delivery without a recent signature by one of the secrets.
var ErrNotGenuine = errors.New("receive: the delivery is not genuine")

// Verify checks a delivery: the headers webhook-id, webhook-timestamp and webhook-signature, and the body. The error is
// [ErrNotGenuine], with the reason.
func (r *Receiver) Verify(h http.Header, body []byte) error {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || err != nil {
		return fmt.Errorf("%w: it has no webhook-id and webhook-timestamp", ErrNotGenuine)
	}
	if off := r.config.Now().Sub(time.Unix(seconds, 0)); off.Abs() > r.config.Tolerance {
		return fmt.Errorf("%w: its time is %s from now; at most %s is accepted", ErrNotGenuine, off.Round(time.Second),
			r.config.Tolerance)
	}
	signed := slicesOf(id, ".", stamp, ".", string(body))
	for one := range strings.FieldsSeq(strings.Join(h.Values("Webhook-Signature"), " ")) {
		version, text, _ := strings.Cut(one, ",")
		signature, err := base64.StdEncoding.DecodeString(text)
		if err == nil && r.signed(version, signed, signature) {
			return nil
		}
	}
	return fmt.Errorf("%w: no signature is by a known secret", ErrNotGenuine)
}

func slicesOf(parts ...string) []byte { return []byte(strings.Join(parts, "")) }

// signed reports whether a signature is by one of the secrets or keys.
func (r *Receiver) signed(version string, content, signature []byte) bool {
	switch version {
	case "v1":
		for _, secret := range r.secrets {
			mac := hmac.New(sha256.New, secret)
			_, _ = mac.Write(content)
			if hmac.Equal(mac.Sum(nil), signature) {
				return true
			}
		}
	case "v1a":
		for _, key := range r.keys {
			if ed25519.Verify(key, content, signature) {
				return true
			}
		}
	}
	return false
}

// Handler returns a handler that passes each genuine delivery on, once. The body can be read as usual.
//
// A delivery that is not genuine is answered with 401, so that it is tried again while secrets are rotated. A duplicate
// of one that next has answered with a status below 300 is answered with 200, and is not passed on. A duplicate of one
// that next is still at is answered with 503, so that it is tried again. After any other answer of next, and after a
// panic, the next attempt is passed on.
func (r *Receiver) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.config.MaxBody))
		if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
			http.Error(w, "the body is too long", http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, "the body can't be read", http.StatusInternalServerError)
			return
		}
		if err := r.Verify(req.Header, body); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		id := req.Header.Get("Webhook-Id")
		switch r.seen.begin(id) {
		case done:
			w.WriteHeader(http.StatusOK)
			return
		case underWay:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "this delivery is under way", http.StatusServiceUnavailable)
			return
		case fresh:
		}
		answer := &recorder{ResponseWriter: w}
		taken := false
		defer func() { r.seen.end(id, taken) }()
		req.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(answer, req)
		taken = answer.status < 300
	})
}

// recorder notes the status of an answer: 0 if none was named, which is 200.
type recorder struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// state is the known state of a delivery.
type state uint8

const (
	fresh state = iota
	underWay
	done
)

// seen has the latest ids. The front of the list is the oldest.
type seen struct {
	mu    sync.Mutex
	limit int
	ids   map[string]*list.Element
	order list.List
}

type delivery struct {
	id   string
	done bool
}

// begin notes that a delivery is under way, unless it is or was.
func (s *seen) begin(id string) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ids[id]; e != nil {
		if e.Value.(*delivery).done {
			return done
		}
		return underWay
	}
	s.ids[id] = s.order.PushBack(&delivery{id: id})
	for s.order.Len() > s.limit {
		oldest := s.order.Remove(s.order.Front()).(*delivery)
		delete(s.ids, oldest.id)
	}
	return fresh
}

// end notes that a delivery was taken, or forgets it.
func (s *seen) end(id string, taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.ids[id]
	switch {
	case e == nil: // more began meanwhile than are remembered
	case taken:
		e.Value.(*delivery).done = true
	default:
		s.order.Remove(e)
		delete(s.ids, id)
	}
}
