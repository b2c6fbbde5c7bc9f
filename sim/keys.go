package sim

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// credential is the key of a caller.
type credential struct {
	id string

	lock sync.Mutex
	keys []string // with each secret that was shown, in that order
}

// add adds the key with a new secret, and returns the secret's number.
func (c *credential) add(key string) int {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.keys = append(c.keys, key)
	return len(c.keys) - 1
}

// key returns the key with the last secret but so many, or with the first one, and the secret's number.
func (c *credential) key(former int) (key string, number int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	number = max(0, len(c.keys)-1-former)
	return c.keys[number], number
}

// bearer returns the header that shows a token.
func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// credentials returns the header by which an operation is asked for, and the number of the secret in it.
func (w *world) credentials(o *Op) (header []string, secret int) {
	if o.Caller == "" || o.Kind == checker.Revoke || o.Kind == checker.Rotate {
		return bearer(operatorToken), 0
	}
	key, secret := w.made[o.Caller].key(o.Former)
	return bearer(key), secret
}

// rotated keeps the key that the answer to a rotation shows.
func (w *world) rotated(seen *checker.Op, a record.Answer) {
	if seen.Kind != checker.Rotate || !a.OK() {
		return
	}
	_, key, err := record.Key(a)
	if err != nil {
		panic(err)
	}
	seen.Secret = w.made[seen.Caller].add(key)
}

// permissions returns those of all callers of a plan that begins at a time.
func permissions(p *Plan, begun time.Time) map[string]checker.Permissions {
	all := maps.Clone(callers)
	maps.Copy(all, guests)
	if p.Expires > 0 {
		limited := all[temporary]
		limited.Expires = begun.Add(p.Expires.D())
		all[temporary] = limited
	}
	return all
}

// makeKeys makes the keys of the callers of a plan.
func (w *world) makeKeys() {
	all := permissions(w.plan, w.record.Begun())
	for _, caller := range slices.Sorted(maps.Keys(all)) {
		if slices.ContainsFunc(w.plan.Ops, func(o Op) bool { return o.Caller == caller }) {
			w.made[caller] = w.makeKey(all[caller])
		}
	}
}

func (w *world) makeKey(p checker.Permissions) *credential {
	params := map[string]any{"role": p.Role, "tenants": p.Tenants}
	if p.Prefix != "" {
		params["keyPrefix"] = p.Prefix
	}
	if !p.Expires.IsZero() {
		params["expiresAt"] = p.Expires.UTC().Format(time.RFC3339Nano)
	}
	headers := append(bearer(operatorToken), "Content-Type", "application/json")
	for {
		a := w.request(0, "POST", "/v1/keys", encoded(params), headers...)
		if a.Status != http.StatusCreated {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		id, key, err := record.Key(a)
		if err != nil {
			panic(err)
		}
		return &credential{id: id, keys: []string{key}}
	}
}
