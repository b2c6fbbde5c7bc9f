//go:build services

package main_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// TestSecretsEndToEnd: each delivery has its secret and is signed, by every replica, before, during and after the
// replacement of the encryption key. No log has any of the secrets.
func TestSecretsEndToEnd(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		dir := t.TempDir()
		first, second := filepath.Join(dir, "first.key"), filepath.Join(dir, "second.key")
		c.run(0, "secrets", "new-key", first)
		c.run(0, "secrets", "new-key", second)
		c.start(2, "--encryption-key-file="+first)
		const token = "s3cret-t0ken"
		c.call(c.replicas[0], "PUT", "/v1/secrets/token", map[string]any{"value": token}, 201)
		made := c.call(c.replicas[1], "POST", "/v1/signing-secrets", map[string]any{"name": "default"}, 201)
		verifier, err := standardwebhooks.NewWebhook(made["secret"].(string))
		if err != nil {
			t.Fatal(err)
		}
		var lock sync.Mutex
		arrived := map[string]string{} // the faults of the deliveries, by their keys
		receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			wrong := ""
			if err := verifier.Verify(body, r.Header); err != nil {
				wrong = err.Error()
			}
			if got := r.Header.Get("Authorization"); got != "Bearer "+token {
				wrong += fmt.Sprintf(" authorization %q", got)
			}
			lock.Lock()
			defer lock.Unlock()
			arrived[r.Header.Get("Carillon-Key")] = wrong
		}))
		defer receiver.Close()
		// deliver has a replica submit a job that names the secrets, and waits for its delivery.
		deliver := func(r *replica, key string) {
			t.Helper()
			c.put(r, key, 1, 0, map[string]any{"type": "http", "signing": "default", "data": map[string]any{
				"url": receiver.URL, "payload": key,
				"headers": map[string]any{"Authorization": map[string]any{"secret": "token", "prefix": "Bearer "}},
			}}, 201)
			c.until(key+" arrives", func() bool {
				lock.Lock()
				defer lock.Unlock()
				wrong, ok := arrived[key]
				if wrong != "" {
					t.Fatalf("%s arrives wrong: %s", key, wrong)
				}
				return ok
			})
		}
		deliver(c.replicas[0], "one")
		deliver(c.replicas[1], "two")

		// All replicas have both keys; then all encrypt with the new one; then none needs the old one.
		c.replaceAll("--encryption-key-file=" + second + "," + first)
		deliver(c.replicas[0], "three")
		out := c.run(0, "secrets", "reencrypt", "--store="+c.url, "--encryption-key-file="+second+","+first)
		if !strings.Contains(out, ": 2 now") {
			t.Errorf("encrypted anew: %s", out)
		}
		deliver(c.replicas[1], "four")
		c.replaceAll("--encryption-key-file=" + second)
		deliver(c.replicas[0], "five")
		c.stop()
		out = c.run(2, "serve", "--listen=127.0.0.1:0", "--store="+c.url, "--encryption-key-file="+first)
		if !strings.Contains(out, "--encryption-key-file") {
			t.Errorf("without the key in use: %s", out)
		}
		for _, r := range c.replicas {
			for _, secret := range []string{token, made["secret"].(string)} {
				if strings.Contains(r.log.String(), secret) {
					t.Errorf("a log has %s", secret)
				}
			}
		}
	})
}

// replaceAll stops all replicas, and starts as many with other options.
func (c *cluster) replaceAll(args ...string) {
	c.Helper()
	for i, r := range c.replicas {
		r.signal(c.T, syscall.SIGTERM)
		<-r.exited
		c.replicas[i] = c.startOne(args...)
	}
}
