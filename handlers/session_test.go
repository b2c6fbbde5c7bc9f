package handlers_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/sessions"
	"github.com/carillon-scheduler/carillon/handlers"
)

// signIn begins a session with a key, and returns its cookie as browsers send it.
func (k *keyedAPI) signIn(token string, headers ...string) (*http.Cookie, string) {
	k.Helper()
	got := k.call("POST", "/v1/session", "", append(headers, "Authorization: Bearer "+token)...).want(200)
	cookies := (&http.Response{Header: got.header}).Cookies()
	if len(cookies) != 1 {
		k.Fatalf("cookies %v", cookies)
	}
	return cookies[0], "Cookie: " + cookies[0].Name + "=" + cookies[0].Value
}

// session is the description of a caller.
type session struct {
	Authentication string   `json:"authentication"`
	ID             string   `json:"id"`
	Role           string   `json:"role"`
	Permissions    []string `json:"permissions"`
	Tenants        []string `json:"tenants"`
	KeyPrefix      string   `json:"keyPrefix"`
	ExpiresAt      string   `json:"expiresAt"`
}

const samePage = "Sec-Fetch-Site: same-origin"

// A session has exactly the permissions of its key, and ends with it.
func TestSession(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	token := a.token(access.KeyParams{
		Role: access.Submitter, Scope: access.Scope{Tenants: []string{"acme"}, KeyPrefix: "mail/"},
		ExpiresAt: start.Add(time.Hour),
	})
	set, cookie := a.signIn(token)
	if !set.HttpOnly || set.SameSite != http.SameSiteStrictMode || set.Path != "" || set.Domain != "" || set.Secure {
		t.Errorf("cookie %s", set)
	}
	if strings.Contains(set.Value, token) {
		t.Error("the cookie has the key")
	}
	if set, _ := a.signIn(token, "Origin: https://"+strings.TrimPrefix(a.url, "http://")); !set.Secure {
		t.Errorf("over TLS, the cookie is %s", set)
	}
	view := decode[session](a.call("GET", "/v1/session", "", cookie, samePage).want(200))
	id, _ := access.ParseToken(token)
	if view.ID != id || view.Role != "submitter" || strings.Join(view.Permissions, " ") != "read submit" ||
		strings.Join(view.Tenants, " ") != "acme" || view.KeyPrefix != "mail/" || view.Authentication != "keys" ||
		view.ExpiresAt != "2030-01-01T13:00:00.000Z" {
		t.Errorf("session %+v", view)
	}
	a.call("PUT", "/v1/jobs/mail%2F1", body("mail/1", time.Hour), cookie, samePage).want(201)
	a.call("PUT", "/v1/jobs/news%2F1", body("news/1", time.Hour), cookie, samePage).want(403)
	a.call("POST", "/v1/jobs/mail%2F1/pause", "", cookie, samePage).want(403)
	a.call("POST", "/v1/session", "", cookie, samePage).want(403) // else a stolen one would never end

	if err := a.keys.Revoke(t.Context(), id, a.clock()); err != nil {
		t.Fatal(err)
	}
	a.call("GET", "/v1/session", "", cookie, samePage).want(401)
}

func TestSessionEnds(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	token := a.token(access.KeyParams{Role: access.Viewer, Scope: access.Everything()})
	_, cookie := a.signIn(token)
	_, other := a.signIn(token)
	got := a.call("DELETE", "/v1/session", "", cookie, samePage).want(204)
	if set := got.header.Get("Set-Cookie"); !strings.Contains(set, "carillon_session=; Max-Age=0") {
		t.Errorf("Set-Cookie: %s", set)
	}
	a.call("GET", "/v1/jobs", "", cookie, samePage).want(401)
	a.call("GET", "/v1/jobs", "", other, samePage).want(200)
	a.advance(sessions.Lifetime)
	a.call("GET", "/v1/jobs", "", other, samePage).want(401)
	a.call("GET", "/v1/jobs", "", "Authorization: Bearer "+token).want(200)
	a.call("DELETE", "/v1/session", "", "Authorization: Bearer "+token).want(204) // there is none to end
	a.call("GET", "/v1/jobs", "", "Cookie: carillon_session="+token, samePage).want(401)
}

// A browser adds the cookie to requests that other pages make too. Those are refused, also of other ports of the host,
// which browsers count as the same site.
func TestOtherPagesUseNoSession(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	_, cookie := a.signIn(a.token(access.KeyParams{Role: access.Operator, Scope: access.Everything()}))
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), cookie, samePage).want(201)
	for _, c := range []struct {
		header      string
		read, write int
	}{
		{samePage, 200, 202},
		{"Origin: " + a.url, 200, 202}, // without TLS, browsers send the origin only
		{"Sec-Fetch-Site: none", 200, 403},
		{"X-Nothing: 1", 200, 403},
		{"Sec-Fetch-Site: same-site", 403, 403},
		{"Sec-Fetch-Site: cross-site", 403, 403},
		{"Origin: http://127.0.0.1:1", 200, 403}, // it may not read the answer
		{"Origin: null", 200, 403},
	} {
		a.call("GET", "/v1/jobs/k", "", cookie, c.header).want(c.read)
		a.call("POST", "/v1/jobs/k/trigger", "", cookie, c.header).want(c.write)
	}
}

// An API without keys needs no sessions, and a page can see that.
func TestSessionWithoutKeys(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, method := range []string{"GET", "POST"} {
		got := a.call(method, "/v1/session", "").want(200)
		if view := decode[session](got); view.Authentication != "none" || view.Role != "admin" || got.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s, %v", method, got.body, got.header)
		}
	}
	a.call("DELETE", "/v1/session", "").want(204)
}

// Guessed sessions are limited as guessed keys are, and sessions in use are let in all the same.
func TestWrongSessionsAreLimitedByAddress(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	_, cookie := a.signIn(a.token(access.KeyParams{Role: access.Viewer, Scope: access.Everything()}))
	for range 20 {
		a.call("GET", "/v1/jobs", "", "Cookie: carillon_session=wrong", samePage).want(401)
	}
	a.call("GET", "/v1/jobs", "", "Cookie: carillon_session=wrong", samePage).want(429)
	a.call("GET", "/v1/jobs", "", cookie, samePage).want(200)
}

// The trail has sign-ins, and names the key of each change by a session, but never a secret.
func TestAuditOfSessions(t *testing.T) {
	t.Parallel()
	a := &keyedAPI{}
	var end func() string
	a.api, end = auditedAPI(t, func(c *handlers.Config) {
		a.keys = access.NewKeys(c.Records)
		c.Auth, c.Keys = a.keys, a.keys
	})
	defer func() { _ = a.keys.Close() }()
	token := a.token(access.KeyParams{Role: access.Submitter, Scope: access.Everything()})
	set, cookie := a.signIn(token)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), cookie, samePage).want(201)
	a.call("DELETE", "/v1/session", "", cookie, samePage).want(204)
	text := end()
	id, _ := access.ParseToken(token)
	var actions []string
	for _, l := range auditLines(t, text) {
		actions = append(actions, l.Action)
		if l.Principal != id {
			t.Errorf("%s was done by %q, want %q", l.Action, l.Principal, id)
		}
	}
	if got := strings.Join(actions, ", "); got != "POST /v1/session, PUT /v1/jobs/:key, DELETE /v1/session" {
		t.Errorf("the trail has %s", got)
	}
	if strings.Contains(text, set.Value) || strings.Contains(text, token) {
		t.Errorf("the trail has a secret: %s", text)
	}
}
