//go:build services

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// Keys are created, rotated and revoked by the command, while no replica runs and while some do, and by the API; all
// replicas go by them.
func TestKeys(t *testing.T) {
	inLongOnEachWay(t, func(t *testing.T, c *cluster) {
		admin := c.keys("create", "--role=admin")
		trail := auditFile(t)
		c.start(2, "--auth=keys", "--audit="+trail)
		here, there := c.replicas[0], c.replicas[1]
		job, err := json.Marshal(map[string]any{"delay": "1d", "callback": c.webhook()})
		if err != nil {
			t.Fatal(err)
		}
		put := func(r *replica, key string) (status int) {
			status, _ = c.request(r, http.MethodPut, "/v1/jobs/k", key, string(job))
			return status
		}
		refused := func(r *replica, key string) bool {
			status := put(r, key) // a client that tries again and again has to wait
			return status == http.StatusUnauthorized || status == http.StatusTooManyRequests
		}
		expect := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: answered %d, want %d", what, got, want)
			}
		}
		expect("without a key", put(here, ""), http.StatusUnauthorized)
		expect("with a wrong key", put(here, admin[:len(admin)-1]), http.StatusUnauthorized)
		expect("with the key", put(here, admin), http.StatusCreated)
		expect("with the key, on the other replica", put(there, admin), http.StatusOK)

		// The API makes another one, which is valid on both replicas at once.
		status, body := c.request(here, http.MethodPost, "/v1/keys", admin, `{"role": "submitter", "tenants": ["default"], "keyPrefix": "k"}`)
		expect("a new key", status, http.StatusCreated)
		var made struct{ ID, Key string }
		if err := json.Unmarshal(body, &made); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		expect("with the new key", put(there, made.Key), http.StatusOK)
		status, _ = c.request(there, http.MethodGet, "/v1/keys", made.Key, "")
		expect("keys, with one that may not see them", status, http.StatusForbidden)

		// The command gives it another secret. The new one is valid at once, and the old one not for long.
		rotated := c.keys("rotate", made.ID, "--overlap=0s")
		for i, r := range c.replicas {
			expect(fmt.Sprintf("with the rotated key, replica %d", i), put(r, rotated), http.StatusOK)
			c.until("the old key is refused", func() bool { return refused(r, made.Key) })
		}
		// A revocation is noticed likewise.
		status, _ = c.request(here, http.MethodDelete, "/v1/keys/"+made.ID, admin, "")
		expect("the revocation", status/100*100, http.StatusOK)
		if !refused(here, rotated) {
			t.Error("the revoked key is taken where it was revoked")
		}
		c.until("the revoked key is refused", func() bool { return refused(there, rotated) })
		c.keys("revoke", admin)
		for _, r := range c.replicas {
			c.until("the last key is refused", func() bool { return refused(r, admin) })
		}
		// Both replicas have written their lines.
		lines, told := audited(t, trail)
		id := strings.Split(admin, "_")[1]
		for _, want := range []string{
			id + " PUT /v1/jobs/:key done", id + " POST /v1/keys done", made.ID + " PUT /v1/jobs/:key done",
			made.ID + " GET /v1/keys refused", id + " DELETE /v1/keys/:id done", " PUT /v1/jobs/:key refused",
		} {
			if lines[want] == 0 {
				t.Errorf("the audit trail does not have %q: %v", want, lines)
			}
		}
		for _, key := range []string{admin, made.Key, rotated} {
			if strings.Contains(told, key[len(key)-36:]) {
				t.Error("the audit trail has a secret")
			}
		}
		for i, r := range c.replicas {
			if strings.Contains(r.log.String(), admin[len(admin)-36:]) || strings.Contains(r.log.String(), rotated[len(rotated)-36:]) {
				t.Errorf("the log of replica %d has a secret", i)
			}
		}
	})
}

// keys runs a command about keys, and returns its output.
func (c *cluster) keys(verb string, args ...string) string {
	c.Helper()
	path, err := binary()
	if err != nil {
		c.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(path, append([]string{"keys", verb, "--store=" + c.url}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		c.Fatalf("keys %s: %v: %s", verb, err, &stderr)
	}
	return strings.TrimSuffix(stdout.String(), "\n")
}

// request makes a request with a key, if there is one: again while a busy machine's store does not answer in time.
func (c *cluster) request(r *replica, method, path, key, body string) (status int, answer []byte) {
	c.Helper()
	c.until("the store answers", func() bool {
		request, err := http.NewRequestWithContext(c.Context(), method, r.url+path, strings.NewReader(body))
		if err != nil {
			c.Fatal(err)
		}
		if body != "" {
			request.Header.Set("Content-Type", "application/json")
		}
		if key != "" {
			request.Header.Set("Authorization", "Bearer "+key)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			c.Fatal(err)
		}
		defer response.Body.Close()
		if answer, err = io.ReadAll(response.Body); err != nil {
			c.Fatal(err)
		}
		status = response.StatusCode
		return status != http.StatusServiceUnavailable
	})
	return status, answer
}
