package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

// keyedAPI is an API that asks for keys.
type keyedAPI struct {
	*api
	keys    *access.Keys
	handler http.Handler
}

func newKeyedAPI(t testing.TB, configure ...func(*handlers.Config)) *keyedAPI {
	k := &keyedAPI{}
	k.api = newAPI(t, append(configure, func(c *handlers.Config) {
		k.keys = access.NewKeys(c.Records)
		c.Auth, c.Keys = k.keys, k.keys
		k.handler = handlers.New(*c)
	})...)
	t.Cleanup(func() { _ = k.keys.Close() })
	return k
}

// key makes a key, and answers the header that shows it.
func (k *keyedAPI) key(role access.Role, keyPrefix string, tenants ...string) string {
	k.Helper()
	return "Authorization: Bearer " + k.token(access.KeyParams{Role: role, Scope: access.Scope{Tenants: tenants, KeyPrefix: keyPrefix}})
}

func (k *keyedAPI) token(params access.KeyParams) string {
	k.Helper()
	token, _, err := k.keys.Create(k.Context(), params, "anyone", k.clock())
	if err != nil {
		k.Fatal(err)
	}
	return token
}

// ask makes a request with any header, from any address, and without a network.
func (k *keyedAPI) ask(from string, header http.Header) answer {
	k.Helper()
	request := httptest.NewRequestWithContext(k.Context(), http.MethodGet, "/v1/jobs", http.NoBody)
	request.RemoteAddr, request.Header = from, header
	recorder := httptest.NewRecorder()
	k.handler.ServeHTTP(recorder, request)
	got := answer{api: k.api, status: recorder.Code, header: recorder.Header(), body: recorder.Body.Bytes()}
	k.conforms(request, "", got)
	return got
}

const somewhere = "192.0.2.1:1234"

// TestPermissionsAreTheSpecifiedOnes compares the table of routes with the specification.
func TestPermissionsAreTheSpecifiedOnes(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	spec := specification(t)
	for _, route := range handlers.Places() {
		item := spec.Paths.Value(route.Path)
		if item == nil || item.GetOperation(route.Method) == nil {
			t.Errorf("%s %s is not specified", route.Method, route.Path)
			continue
		}
		operation := item.GetOperation(route.Method)
		if got := operation.Extensions["x-permission"]; got != string(route.Needs) {
			t.Errorf("%s needs %s, and is specified to need %v", operation.OperationID, route.Needs, got)
		}
		if got := operation.Extensions["x-extent"]; got != route.Extent {
			t.Errorf("%s is about %s, and is specified to be about %v", operation.OperationID, route.Extent, got)
		}
		public := route.Needs == access.Public
		if free := operation.Security != nil && len(*operation.Security) == 0; free != public {
			t.Errorf("%s is specified to need no key: %t", operation.OperationID, free)
		}
		for _, status := range []string{"401", "403", "429"} {
			if specified := operation.Responses.Value(status) != nil; specified == public {
				t.Errorf("%s: the answer %s is specified: %t", operation.OperationID, status, specified)
			}
		}
	}
	if want := (&openapi3.SecurityRequirements{{"bearer": {}}, {"session": {}}, {}}); fmt.Sprint(spec.Security) != fmt.Sprint(*want) {
		t.Errorf("it asks for %v", spec.Security)
	}
}

// TestKeysAreAskedFor: all invalid keys get the same answer, for whatever reason they are invalid.
func TestKeysAreAskedFor(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	everything := access.KeyParams{Role: access.Viewer, Scope: access.Everything()}
	right := a.token(everything)
	expiring, other := everything, a.token(everything)
	expiring.ExpiresAt = a.clock().Add(time.Hour)
	expired := a.token(expiring)
	revoked := a.token(everything)
	id, _ := access.ParseToken(revoked)
	if err := a.keys.Revoke(t.Context(), id, a.clock()); err != nil {
		t.Fatal(err)
	}
	a.call("GET", "/v1/jobs", "", "Authorization: Bearer "+expired).want(200)
	a.advance(time.Hour)
	const none, wrong, several = `Bearer realm="carillon"`, `Bearer realm="carillon", error="invalid_token"`, `Bearer realm="carillon", error="invalid_request"`
	var texts []string
	for _, c := range []struct {
		shown     []string
		challenge string // of a refusal
	}{
		{[]string{"Bearer " + right}, ""},
		{[]string{"bearer  " + right}, ""},
		{[]string{"Bearer " + other}, ""},
		{nil, none},
		{[]string{"Bearer " + right, "Bearer " + right}, several},
		{[]string{"Bearer " + right, ""}, several},
		{[]string{""}, wrong},
		{[]string{"Bearer"}, wrong},
		{[]string{"Bearer "}, wrong},
		{[]string{right}, wrong},
		{[]string{"Basic " + right}, wrong},
		{[]string{"Bearer\t" + right}, wrong},
		{[]string{"Bearer " + right + " "}, wrong},
		{[]string{"Bearer " + right + ", Bearer " + right}, wrong},
		{[]string{"Bearer " + right + "," + right}, wrong},
		{[]string{"Bearer " + right + right}, wrong},
		{[]string{"Bearer " + right + "="}, wrong},
		{[]string{"Bearer " + right[:len(right)-1]}, wrong},
		{[]string{"Bearer " + strings.ToUpper(right)}, wrong},
		{[]string{"Bearer " + strings.Repeat("x", 1<<20)}, wrong},
		{[]string{"Bearer " + expired}, wrong},
		{[]string{"Bearer " + revoked}, wrong},
	} {
		header := http.Header{}
		if c.shown != nil {
			header["Authorization"] = c.shown
		}
		a.advance(time.Minute) // so that nothing is limited
		got := a.ask(somewhere, header)
		if want := map[bool]int{true: 200, false: 401}[c.challenge == ""]; got.status != want || got.header.Get("WWW-Authenticate") != c.challenge {
			t.Errorf("%.100q is answered with %d and %q, want %d and %q", c.shown, got.status, got.header.Get("WWW-Authenticate"), want, c.challenge)
		}
		if c.challenge == wrong {
			texts = append(texts, got.problem().Detail)
		}
	}
	if slices.Sort(texts); len(slices.Compact(texts)) != 1 {
		t.Errorf("they are told apart: %q", texts)
	}
}

// TestTenantFollowsFromTheKey: which tenant a request acts for, by the tenants of its key and by the header.
func TestTenantFollowsFromTheKey(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	admin := a.key(access.Admin, "", "*")
	for _, tenant := range []string{"default", "acme", "bolt"} {
		a.call("PUT", "/v1/jobs/of-"+tenant, body("of-"+tenant, time.Hour), admin, "Carillon-Tenant: "+tenant).want(201)
	}
	for _, c := range []struct {
		tenants string // of the key
		header  []string
		status  int
		want    string // the tenant
	}{
		{"*", nil, 200, "default"},
		{"*", []string{"acme"}, 200, "acme"},
		{"*", []string{"never-seen"}, 200, ""},
		{"acme", nil, 200, "acme"},
		{"acme", []string{"acme"}, 200, "acme"},
		{"acme", []string{"bolt"}, 403, ""},
		{"acme", []string{"default"}, 403, ""},
		{"acme", []string{"never-seen"}, 403, ""},
		{"acme", []string{"Acme"}, 403, ""},
		{"acme", []string{"*"}, 422, ""},
		{"acme", []string{""}, 422, ""},
		{"acme", []string{"acme", "bolt"}, 422, ""},
		{"acme", []string{"acme", "acme"}, 422, ""},
		{"acme", []string{"acme,bolt"}, 422, ""},
		{"acme", []string{"acme, acme"}, 422, ""},
		{"acme bolt", []string{"bolt"}, 200, "bolt"},
		{"acme bolt", nil, 422, ""},
		{"acme default", nil, 200, "default"},
	} {
		header := http.Header{}
		_, shown, _ := strings.Cut(a.key(access.Viewer, "", strings.Fields(c.tenants)...), ": ")
		header.Set("Authorization", shown)
		if c.header != nil {
			header["Carillon-Tenant"] = c.header
		}
		got := a.ask(somewhere, header)
		if got.status != c.status || c.want != "" && !strings.Contains(string(got.body), "of-"+c.want) || strings.Count(string(got.body), `"key"`) > 1 {
			t.Errorf("a key for %s with the header %q is answered with %d: %s", c.tenants, c.header, got.status, got.body)
		}
		if c.status != 422 {
			continue
		}
		if named := got.problem().named(); !slices.Equal(named, []string{"?Carillon-Tenant"}) {
			t.Errorf("a key for %s with the header %q: it names %q", c.tenants, c.header, named)
		}
	}
}

// TestLookalikesOfHeaders: names that a proxy may take for a header of authentication are refused, with and without
// keys.
func TestLookalikesOfHeaders(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	key := a.key(access.Admin, "", "acme")
	open := newAPI(t)
	for _, name := range []string{"Carillon_Tenant", "carillon_tenant", "CARILLON_TENANT"} {
		a.call("GET", "/v1/jobs", "", key, name+": bolt").want(400)
		a.call("GET", "/v1/tenants", "", key, name+": bolt").want(400)
		open.call("GET", "/v1/jobs", "", name+": bolt").want(400)
	}
	open.call("GET", "/v1/jobs", "", "X_Other: 1").want(200)
	a.call("GET", "/v1/jobs", "", key, "carillon-tenant: bolt").want(403) // which is the header itself
	for _, path := range []string{"/v1/tenants", "/v1/backlog", "/v1/keys"} {
		a.call("GET", path, "", key, "Carillon-Tenant: acme").want(400)
	}
}

// TestHeadersOnTheWire: a header that is sent twice, in any case, or in a form that others may read otherwise, is
// refused.
func TestHeadersOnTheWire(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	token := a.token(access.KeyParams{Role: access.Viewer, Scope: access.Scope{Tenants: []string{"acme", "bolt"}}})
	for lines, want := range map[string]int{
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme":                              200,
		"AUTHORIZATION: Bearer KEY\r\ncarillon-tenant:acme":                               200,
		"Authorization: Bearer KEY\r\nCarillon-Tenant:  acme  ":                           200,
		"Authorization: Bearer KEY\r\nauthorization: Bearer KEY\r\nCarillon-Tenant: acme": 401,
		"Authorization: Bearer x\r\nauthorization: Bearer KEY\r\nCarillon-Tenant: acme":   401,
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme\r\ncarillon-tenant: bolt":     422,
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme, bolt":                        422,
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme\r\n bolt":                     422, // a folded line
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme\r\nCarillon_Tenant: bolt":     400,
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme\r\nCarillon-Tenant : bolt":    400, // as HTTP itself says
		"Authorization: Bearer KEY\r\nCarillon-Tenant: acme\x00":                          400,
		"Authorization_: Bearer KEY\r\nCarillon-Tenant: acme":                             401,
		"Proxy-Authorization: Bearer KEY\r\nCarillon-Tenant: acme":                        401,
		"Cookie: Authorization=Bearer KEY\r\nCarillon-Tenant: acme":                       401,
	} {
		connection, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(connection, "GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n\r\n", strings.ReplaceAll(lines, "KEY", token))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != want {
			t.Errorf("%q is answered with %d, want %d", lines, answer.StatusCode, want)
		}
		connection.Close()
	}
}

// TestTokenForNothing: a token without a role or without a tenant may do nothing.
func TestTokenForNothing(t *testing.T) {
	t.Parallel()
	for _, p := range []access.Principal{
		{ID: "nobody"}, {ID: "no role", Scope: access.Everything()}, {ID: "no tenant", Role: access.Admin}, {ID: "unknown", Role: "root", Scope: access.Everything()},
	} {
		a := newAPI(t, func(c *handlers.Config) { c.Auth = always{p} })
		for _, request := range [][3]string{
			{"GET", "/v1/jobs", ""}, {"PUT", "/v1/jobs/k", body("k", time.Hour)}, {"PUT", "/v1/tenants/acme", "{}"}, {"GET", "/metrics", ""},
			{"POST", "/v1/keys", `{"role":"viewer","tenants":["acme"]}`}, {"DELETE", "/v1/dead-letters?all=true", ""},
		} {
			a.call(request[0], request[1], request[2], "Authorization: Bearer x").want(403)
		}
	}
}

// always is an authenticator for which all callers are the same.
type always struct{ access.Principal }

func (a always) Authenticate(context.Context, string, time.Time) (access.Principal, error) {
	return a.Principal, nil
}

func (always) Knows(string, time.Time) bool { return true }

// TestWrongKeysAreLimitedByAddress, and right ones that are known are not.
func TestWrongKeysAreLimitedByAddress(t *testing.T) {
	t.Parallel()
	a := newKeyedAPI(t)
	right := http.Header{"Authorization": {"Bearer " + a.token(access.KeyParams{Role: access.Viewer, Scope: access.Everything()})}}
	unseen := http.Header{"Authorization": {"Bearer " + a.token(access.KeyParams{Role: access.Viewer, Scope: access.Everything()})}}
	unused := http.Header{"Authorization": {"Bearer " + a.token(access.KeyParams{Role: access.Viewer, Scope: access.Everything()})}}
	wrong := func(n int) http.Header {
		return http.Header{"Authorization": {"Bearer wrong"}, "X-Forwarded-For": {fmt.Sprintf("198.51.100.%d", n)}}
	}
	const here, sameHost, elsewhere = "[2001:db8::1]:1", "[2001:db8::2]:2", "[2001:db8:0:1::1]:1"
	a.ask(here, right).want(200)
	keyless := 0
	for ; keyless < 1000 && a.ask(here, http.Header{}).status == 401; keyless++ {
	}
	if keyless < 5 || keyless > 100 {
		t.Fatalf("%d requests without a key are answered", keyless)
	}
	if got := a.ask(sameHost, http.Header{}).want(429); got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	a.ask(sameHost, http.Header{"Authorization": {"Bearer a", "Bearer b"}}).want(429)
	a.ask(elsewhere, http.Header{}).want(401)
	a.ask(here, unused).want(200) // requests without a key are no guesses, and lock out no key
	n := 0
	for ; n < 1000 && a.ask(here, wrong(n)).status == 401; n++ {
	}
	if n < 5 || n > 100 {
		t.Fatalf("%d wrong keys are looked up", n)
	}
	for _, from := range []string{here, sameHost} {
		got := a.ask(from, wrong(n)).want(429)
		if after := got.header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After %q", after)
		}
		a.ask(from, right).want(200)
		a.ask(from, unseen).want(429)
	}
	a.ask(elsewhere, unseen).want(200)
	a.ask(elsewhere, wrong(n)).want(401)
	a.advance(time.Second)
	a.ask(here, http.Header{}).want(401)
	a.ask(here, http.Header{}).want(429)
	a.ask(here, wrong(n)).want(401)
	a.ask(here, wrong(n)).want(429)
	for i := range 9000 { // enough other addresses for this one to be forgotten
		from := fmt.Sprintf("198.18.%d.%d:1", i/256, i%256)
		if got := a.askOnly(from, wrong(0)); got != 401 {
			t.Fatalf("another address is answered with %d", got)
		}
	}
	a.ask(here, wrong(n)).want(401)
}

// askOnly is ask without the specification.
func (k *keyedAPI) askOnly(from string, header http.Header) int {
	request := httptest.NewRequestWithContext(k.Context(), http.MethodGet, "/v1/jobs", http.NoBody)
	request.RemoteAddr, request.Header = from, header
	recorder := httptest.NewRecorder()
	k.handler.ServeHTTP(recorder, request)
	return recorder.Code
}

// unavailable is an authenticator that can't decide.
type unavailable struct{}

func (unavailable) Authenticate(context.Context, string, time.Time) (access.Principal, error) {
	return access.Principal{}, fmt.Errorf("look up a key at db.internal: %w", store.ErrUnavailable)
}

func (unavailable) Knows(string, time.Time) bool { return false }

// broken is an authenticator that fails.
type broken struct{}

func (broken) Authenticate(context.Context, string, time.Time) (access.Principal, error) {
	return access.Principal{}, errors.New("no route to db.internal")
}

func (broken) Knows(string, time.Time) bool { return false }

// TestWhoAsksCanNotBeTold: while the caller can't be identified, nobody is admitted, and the answer contains no cause.
func TestWhoAsksCanNotBeTold(t *testing.T) {
	t.Parallel()
	for status, auth := range map[int]access.Authenticator{503: unavailable{}, 500: broken{}} {
		a := newAPI(t, func(c *handlers.Config) { c.Auth = auth })
		for range 30 { // it is no wrong key
			got := a.call("DELETE", "/v1/jobs/k", "", "Authorization: Bearer x").want(status)
			if strings.Contains(string(got.body), "db.internal") || (got.header.Get("Retry-After") == "") == (status == 503) {
				t.Errorf("it is answered with %q and %s", got.header, got.body)
			}
		}
		a.call("GET", "/healthz", "", "Authorization: Bearer x").want(200)
	}
}

// TestChangesThatOtherSitesAskFor: without keys, a page of another site has its reader's place in the network.
func TestChangesThatOtherSitesAskFor(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, c := range []struct {
		header string
		status int
	}{
		{"Sec-Fetch-Site: cross-site", 403}, {"Sec-Fetch-Site: same-site", 403}, {"Origin: https://example.com", 403}, {"Origin: null", 403},
		{"Sec-Fetch-Site: same-origin", 404}, {"Sec-Fetch-Site: none", 404}, {"Origin: " + a.url, 404}, {"X-Nothing: 1", 404},
	} {
		a.call("POST", "/v1/jobs/k/trigger", "", c.header).want(c.status)
		a.call("GET", "/v1/jobs", "", c.header).want(200)
	}
}

// TestNamesOfOtherSites: a page can have its own name stand for this machine. A browser then takes the API for a part
// of the page's site, and lets it read too.
func TestNamesOfOtherSites(t *testing.T) {
	t.Parallel()
	local := func(c *handlers.Config) { c.LocalOnly = true }
	open, guarded, keyed := newAPI(t), newAPI(t, local), newKeyedAPI(t, local)
	key := keyed.key(access.Admin, "", access.AllTenants)
	for host, want := range map[string]int{
		"127.0.0.1:8080": 200, "localhost": 200, "LocalHost:8080": 200, "localhost.": 200, "carillon.localhost:8080": 200,
		"[::1]:8080": 200, "[::1]": 200, "192.0.2.7": 200,
		"evil.example:8080": 403, "evil.example": 403, "localhost.evil.example": 403, "notlocalhost:8080": 403,
		"127.0.0.1.evil.example:8080": 403, "2130706433": 403,
	} {
		for path, status := range map[string]int{"/v1/jobs": want, "/v1/backlog": want, "/healthz": 200} {
			if got := requestFor(t, guarded, host, path, ""); got != status {
				t.Errorf("Host %s: %s is answered %d, want %d", host, path, got, status)
			}
		}
		if got := requestFor(t, open, host, "/v1/jobs", ""); got != 200 {
			t.Errorf("Host %s: where that is not asked for, it is answered %d", host, got)
		}
		if got := requestFor(t, keyed.api, host, "/v1/jobs", key); got != 200 {
			t.Errorf("Host %s: with a key it is answered %d", host, got)
		}
	}
}

// requestFor asks for a path of a host, and answers the status.
func requestFor(t *testing.T, a *api, host, path, header string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	if name, value, ok := strings.Cut(header, ": "); ok {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// TestStoreWithoutACaller: a handler without a caller in its context can do nothing.
func TestStoreWithoutACaller(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(201)
	for call, err := range handlers.WithoutACaller(t.Context(), a.store, name("k")) {
		if err == nil {
			t.Errorf("%s is done", call)
		}
	}
	a.call("GET", "/v1/jobs/k", "").want(200)
}
