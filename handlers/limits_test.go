package handlers_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/handlers"
)

// limitedAPI returns an API whose tenants have limits by default, and may have others.
func limitedAPI(t *testing.T, key, tenant limits.Limits) *api {
	t.Helper()
	return newAPI(t, func(c *handlers.Config) {
		c.OwnLimits = limits.NewOwn(c.Records, slog.Default())
		c.Limiter = limits.New(limits.Config{Key: key, Tenant: tenant, Own: c.OwnLimits, Count: c.Store.(limits.Counter)})
	})
}

// TestTooManyRequests: they are refused, with the time to wait, and change nothing.
func TestTooManyRequests(t *testing.T) {
	t.Parallel()
	a := limitedAPI(t, limits.Limits{Requests: limits.Rate{PerSecond: 0.5, Burst: 3}}, limits.Limits{Requests: limits.Rate{PerSecond: 1, Burst: 2}})
	for left := 1; left >= 0; left-- {
		got := a.call("PUT", "/v1/jobs/k", body("k", time.Hour))
		if got.status > 201 || got.header.Get("RateLimit-Policy") != `"key-requests";q=3;w=6, "tenant-requests";q=2;w=2` ||
			got.header.Get("RateLimit") != fmt.Sprintf(`"key-requests";r=%d;t=%d, "tenant-requests";r=%d;t=1`, left+1, 2*(2-left), left) {
			t.Errorf("with %d left it is %d, %q", left, got.status, got.header)
		}
	}
	got := a.call("PUT", "/v1/jobs/other", body("other", time.Hour)).want(429)
	if got.header.Get("Retry-After") != "1" || !strings.Contains(got.problem().Detail, "limit tenant-requests") {
		t.Errorf("it is refused with %q: %s", got.header, got.body)
	}
	a.call("GET", "/v1/jobs", "", ofOther).want(200) // the tenant's limit is not that tenant's, and the key has one left
	got = a.call("GET", "/v1/jobs", "", ofAcme).want(429)
	if got.header.Get("Retry-After") != "2" || !strings.Contains(got.problem().Detail, "limit key-requests") {
		t.Errorf("it is refused with %q: %s", got.header, got.body)
	}
	for range 10 {
		a.call("GET", "/healthz", "").want(200)
		a.call("GET", "/openapi.yaml", "").want(200)
	}
	a.advance(2 * time.Second)
	a.call("GET", pathOf("other"), "").want(404)
	a.advance(time.Hour)
	if got := a.call("GET", pathOf("k"), "").want(200); got.header.Get("RateLimit") != `"key-requests";r=2;t=2, "tenant-requests";r=1;t=1` {
		t.Errorf("after an hour it is %q", got.header)
	}
}

// TestQuotaOfJobs: a tenant that has as many as it may have can change, replace and cancel them, and add none.
func TestQuotaOfJobs(t *testing.T) {
	t.Parallel()
	a := limitedAPI(t, limits.Limits{}, limits.Limits{Quota: limits.Quota{Jobs: 3}})
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	lines := body("b", time.Hour) + "\n" + body("a", 2*time.Hour) + "\n" + body("c", time.Hour) + "\n" + body("d", time.Hour) + "\n" + body("b", 2*time.Hour)
	results := a.results(asLines, a.call("POST", "/v1/jobs/batch", lines, "Content-Type: "+asLines).want(200).body)
	for i, want := range []int{201, 200, 201, 403, 200} {
		if results[i].Status != want {
			t.Errorf("item %d: %+v, want %d", i, results[i], want)
		}
	}
	got := a.call("PUT", "/v1/jobs/d", body("d", time.Hour)).want(403)
	p := decode[struct {
		Quota struct {
			Name                   string
			Limit, Present, Wanted int
		}
	}](got)
	if q := p.Quota; q.Name != "tenant-jobs" || q.Limit != 3 || q.Present != 3 || q.Wanted != 1 {
		t.Errorf("it is refused with %s", got.body)
	}
	a.call("PUT", "/v1/jobs/c", body("c", time.Hour, 2*time.Hour)).want(200)
	a.call("PATCH", "/v1/jobs/c", `{"schedules":null,"delay":"3h"}`, "Content-Type: application/merge-patch+json").want(200)
	a.call("PUT", "/v1/jobs/d", body("d", time.Hour), ofAcme).want(201)
	a.call("DELETE", "/v1/jobs/c", "").want(200)
	a.eventually("PUT", "/v1/jobs/d", body("d", time.Hour), 201)
	a.call("PUT", "/v1/jobs/e", body("e", time.Hour)).want(403)
}

// TestQuotaOfPendingOccurrences: a replacement that does not grow is accepted, also beyond the quota.
func TestQuotaOfPendingOccurrences(t *testing.T) {
	t.Parallel()
	a := limitedAPI(t, limits.Limits{}, limits.Limits{})
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour)).want(201)
	a.call("PUT", "/v1/tenants/default/limits", `{"maxPending":3}`).want(200)
	a.call("PUT", "/v1/jobs/b", body("b", time.Hour)).want(403)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour, 2*time.Hour, 3*time.Hour, 5*time.Hour)).want(200)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour, 2*time.Hour, 3*time.Hour, 5*time.Hour, 6*time.Hour)).want(403)
	if got := a.definition("a"); got.Pending != 4 {
		t.Errorf("it has %d pending occurrences", got.Pending)
	}
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(200)
	a.eventually("PUT", "/v1/jobs/b", body("b", time.Hour, 2*time.Hour), 201)
	a.call("PUT", "/v1/jobs/c", recurring("c", "@every 1h")).want(403)
	a.call("PUT", "/v1/tenants/default/limits", `{"maxPending":0}`).want(200)
	a.call("PUT", "/v1/jobs/c", recurring("c", "@every 1h")).want(201)
}

// TestLimitOfPayload: a tenant's own bound is in the answer, and can't raise that of all.
func TestLimitOfPayload(t *testing.T) {
	t.Parallel()
	a := limitedAPI(t, limits.Limits{}, limits.Limits{Payload: 100})
	large := func(n int) string {
		return strings.Replace(body("k", time.Hour), `"data":1`, `"data":"`+strings.Repeat("x", n)+`"`, 1)
	}
	a.call("PUT", "/v1/jobs/k", large(90)).want(201)
	got := a.call("PUT", "/v1/jobs/k", large(110)).want(422)
	if !strings.Contains(string(got.body), "100") {
		t.Errorf("it is refused with %s", got.body)
	}
	a.call("PUT", "/v1/tenants/default/limits", `{"maxPayload":1000000}`).want(200)
	a.call("PUT", "/v1/jobs/k", large(1900)).want(200)
	a.call("PUT", "/v1/jobs/k", large(2100)).want(422)
}

// TestSlowBatch: a batch that is faster than its limit is read more slowly, and accepted whole.
func TestSlowBatch(t *testing.T) {
	t.Parallel()
	line := body("k", time.Hour) + "\n"
	a := limitedAPI(t, limits.Limits{BatchBytes: len(line) * 5}, limits.Limits{})
	start := time.Now()
	results := a.results(asLines, a.call("POST", "/v1/jobs/batch", strings.Repeat(line, 7), "Content-Type: "+asLines).want(200).body)
	if took := time.Since(start); took < 300*time.Millisecond { // two items are read after the first second's worth
		t.Errorf("it took %v", took)
	}
	if len(results) != 7 || results[6].Status > 201 {
		t.Errorf("the results are %+v", results)
	}
}

// TestTenantLimits: a key of all tenants can set, read and reset limits.
func TestTenantLimits(t *testing.T) {
	t.Parallel()
	a := limitedAPI(t, limits.Limits{}, limits.Limits{Requests: limits.RateOf(50, 100), Quota: limits.Quota{Jobs: 1000}})
	a.call("GET", "/v1/tenants/acme/limits", "").want(404)
	a.call("DELETE", "/v1/tenants/acme/limits", "").want(404)
	const standard = `{"requestsPerSecond":50,"requestBurst":100,"batchBytesPerSecond":0,"maxJobs":1000,"maxPending":0,"maxPayload":0,"history":"0"}`
	for _, c := range []struct{ method, body, own, effective string }{
		{"PUT", `{"maxJobs":5,"requestsPerSecond":0}`, `{"requestsPerSecond":0,"maxJobs":5}`, `{"requestsPerSecond":0,"requestBurst":0,"batchBytesPerSecond":0,"maxJobs":5,"maxPending":0,"maxPayload":0,"history":"0"}`},
		{"PUT", `{"requestsPerSecond":2.5}`, `{"requestsPerSecond":2.5}`, strings.Replace(standard, `50,"requestBurst":100`, `2.5,"requestBurst":3`, 1)},
		{"DELETE", ``, `{}`, standard},
		{"PUT", `{}`, `{}`, standard},
	} {
		want := fmt.Sprintf(`{"tenant":"acme","own":%s,"effective":%s}`, c.own, c.effective)
		if got := a.call(c.method, "/v1/tenants/acme/limits", c.body).want(200); string(got.body) != want {
			t.Errorf("%s %s is answered\n%s\nwant\n%s", c.method, c.body, got.body, want)
		}
		if got := a.call("GET", "/v1/tenants/acme/limits", "").want(200); string(got.body) != want {
			t.Errorf("after %s %s it is\n%s\nwant\n%s", c.method, c.body, got.body, want)
		}
	}
	if got := a.call("PUT", "/v1/tenants/acme/limits", `{"maxJobs":-1,"a":1}`).want(422).problem().named(); fmt.Sprint(got) != "[/a /maxJobs]" {
		t.Errorf("it names %q", got)
	}
	a.call("PUT", "/v1/tenants/acme/limits", `{}`, "If-Match: *").want(400)
}

// TestNobodyRaisesOwnLimits: neither an operator nor an administrator of a tenant changes its limits, in any way.
func TestNobodyRaisesOwnLimits(t *testing.T) {
	t.Parallel()
	keys := access.NewKeys(nil)
	a := newAPI(t, func(c *handlers.Config) {
		keys = access.NewKeys(c.Records)
		c.Auth, c.Keys = keys, keys
	})
	t.Cleanup(func() { _ = keys.Close() })
	token := func(role access.Role, tenants ...string) string {
		text, _, err := keys.Create(t.Context(), access.KeyParams{Role: role, Scope: access.Scope{Tenants: tenants}}, "test", start)
		if err != nil {
			t.Fatal(err)
		}
		return "Authorization: Bearer " + text
	}
	all, own := token(access.Admin, access.AllTenants), token(access.Admin, "acme")
	a.call("PUT", "/v1/tenants/acme/limits", `{"maxJobs":5}`, all).want(200)
	for _, by := range []string{own, token(access.Operator, "acme"), token(access.Operator, access.AllTenants)} {
		a.call("PUT", "/v1/tenants/acme/limits", `{}`, by).want(403)
		a.call("DELETE", "/v1/tenants/acme/limits", ``, by).want(403)
		a.call("PUT", "/v1/tenants/acme", `{"weight":2}`, by).want(200)
		a.call("DELETE", "/v1/tenants/acme", ``, by).want(200)
		if got := a.call("GET", "/v1/tenants/acme/limits", "", by).want(200); !strings.Contains(string(got.body), `"own":{"maxJobs":5}`) {
			t.Errorf("the limits are %s", got.body)
		}
	}
}

// limitedKeys returns an API with keys whose limits may be their own, and an administrator's header.
func limitedKeys(t *testing.T, key limits.Limits) (a *keyedAPI, admin string) {
	t.Helper()
	a = newKeyedAPI(t, func(c *handlers.Config) {
		c.Limiter = limits.New(limits.Config{Key: key, Count: c.Store.(limits.Counter)})
	})
	return a, a.key(access.Admin, "", access.AllTenants)
}

// TestOwnLimitsOfKeys: a key's rate and quotas are its own, also after they have been changed.
func TestOwnLimitsOfKeys(t *testing.T) {
	t.Parallel()
	a, admin := limitedKeys(t, limits.Limits{Requests: limits.RateOf(100, 0)})
	made := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"submitter","tenants":["acme"],"keyPrefix":"mail/","limits":{"maxJobs":2,"requestsPerSecond":0,"maxPayload":50}}`, admin).want(201))
	path, own := "/v1/keys/"+made.ID, shows(made.Key)
	if got := a.call("GET", path, "", admin).want(200); !strings.Contains(string(got.body), `"limits":{"requestsPerSecond":0,"maxJobs":2,"maxPayload":50}`) {
		t.Errorf("it is shown as %s", got.body)
	}
	a.call("PUT", "/v1/jobs/news%2F1", body("news/1", time.Hour), admin, ofAcme).want(201) // beyond its scope, so it counts for no quota of it
	for _, n := range []string{"1", "2"} {
		if got := a.call("PUT", "/v1/jobs/mail%2F"+n, body("mail/"+n, time.Hour), own).want(201); got.header.Get("RateLimit") != "" {
			t.Errorf("without a limit of requests it is answered with %q", got.header)
		}
	}
	got := a.call("PUT", "/v1/jobs/mail%2F3", body("mail/3", time.Hour), own).want(403)
	p := decode[struct {
		Quota struct {
			Name  string
			Limit int
		}
	}](got)
	if p.Quota.Name != "key-jobs" || p.Quota.Limit != 2 || !strings.Contains(got.problem().Detail, "scope of this key") {
		t.Errorf("it is refused with %s", got.body)
	}
	a.call("PUT", "/v1/jobs/mail%2F1", body("mail/1", 2*time.Hour), own).want(200)
	large := strings.Replace(body("mail/1", time.Hour), `"data":1`, `"data":"`+strings.Repeat("x", 60)+`"`, 1)
	a.call("PUT", "/v1/jobs/mail%2F1", large, own).want(422)
	a.call("PUT", "/v1/jobs/mail%2F1", large, admin, ofAcme).want(200) // its own quota is no other key's
	a.call("PUT", "/v1/jobs/mail%2F4", body("mail/4", time.Hour), admin, ofAcme).want(201)

	if got := a.call("PUT", path+"/limits", `{"requestsPerSecond":1,"requestBurst":2}`, admin).want(200); !strings.Contains(string(got.body), `"limits":{"requestsPerSecond":1,"requestBurst":2}`) {
		t.Errorf("it is changed to %s", got.body)
	}
	a.call("PUT", "/v1/jobs/mail%2F3", body("mail/3", time.Hour), own).want(201) // at once, at the replica that was asked
	a.call("GET", "/v1/jobs", "", own).want(200)
	if got := a.call("GET", "/v1/jobs", "", own).want(429); !strings.Contains(got.problem().Detail, "limit key-requests") {
		t.Errorf("it is refused with %s", got.body)
	}
	if got := a.call("PUT", path+"/limits", `{}`, admin).want(200); strings.Contains(string(got.body), "limits") {
		t.Errorf("it is changed to %s", got.body)
	}
	for range 2 { // the bucket fills by the new rate from its next use on
		a.advance(time.Second)
		a.call("GET", "/v1/jobs", "", own).want(200)
	}
	for range 3 { // more than the burst that it had
		a.call("GET", "/v1/jobs", "", own).want(200)
	}
}

// TestPendingQuotaOfAKey: a key's quota counts the pending occurrences of its tenant. A key with a prefix has none.
func TestPendingQuotaOfAKey(t *testing.T) {
	t.Parallel()
	a, admin := limitedKeys(t, limits.Limits{})
	made := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"submitter","tenants":["acme","Other_2.eu"],"limits":{"maxPending":3}}`, admin).want(201))
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour, 2*time.Hour), admin, ofAcme).want(201)
	a.call("PUT", "/v1/jobs/b", body("b", time.Hour, 2*time.Hour), shows(made.Key), ofAcme).want(403)
	a.call("PUT", "/v1/jobs/b", body("b", time.Hour, 2*time.Hour), shows(made.Key), ofOther).want(201) // each tenant for itself
	a.call("PUT", "/v1/jobs/b", body("b", time.Hour), shows(made.Key), ofAcme).want(201)
	for _, c := range []struct{ limits, pointer string }{{`{"maxPending":3}`, "/limits/maxPending"}, {`{"requestBurst":3}`, "/limits/requestBurst"}, {`{"maxJobs":-1}`, "/limits/maxJobs"}} {
		got := a.call("POST", "/v1/keys", `{"role":"viewer","tenants":["acme"],"keyPrefix":"mail/","limits":`+c.limits+`}`, admin).want(422)
		if named := fmt.Sprint(got.problem().named()); named != "["+c.pointer+"]" {
			t.Errorf("%s: it names %s", c.limits, named)
		}
	}
	prefixed := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"viewer","tenants":["acme"],"keyPrefix":"mail/"}`, admin).want(201))
	if got := a.call("PUT", "/v1/keys/"+prefixed.ID+"/limits", `{"maxPending":3}`, admin).want(422); fmt.Sprint(got.problem().named()) != "[/maxPending]" {
		t.Errorf("it is refused with %s", got.body)
	}
}

// TestNoKeyGivesHigherLimits: an administrator of some tenants can't grant limits above those of its own key.
func TestNoKeyGivesHigherLimits(t *testing.T) {
	t.Parallel()
	a, admin := limitedKeys(t, limits.Limits{Requests: limits.RateOf(100, 200)})
	own := decode[apiKey](a.call("POST", "/v1/keys", `{"role":"admin","tenants":["acme"],"limits":{"maxJobs":10}}`, admin).want(201))
	give := func(limits string, status int) answer {
		t.Helper()
		return a.call("POST", "/v1/keys", `{"role":"viewer","tenants":["acme"],"limits":`+limits+`}`, shows(own.Key)).want(status)
	}
	for limits, status := range map[string]int{
		`{}`: 403, `{"maxJobs":11}`: 403, `{"maxJobs":0}`: 403, `{"maxJobs":10}`: 201, `{"maxJobs":5,"maxPending":7}`: 201,
		`{"maxJobs":5,"requestsPerSecond":101,"requestBurst":150}`: 403, `{"maxJobs":5,"requestsPerSecond":100,"requestBurst":201}`: 403,
		`{"maxJobs":5,"requestsPerSecond":0}`: 403, `{"maxJobs":5,"requestsPerSecond":99}`: 201,
	} {
		give(limits, status)
	}
	given := decode[apiKey](give(`{"maxJobs":10}`, 201))
	for _, id := range []string{given.ID, own.ID} {
		a.call("PUT", "/v1/keys/"+id+"/limits", `{"maxJobs":11}`, shows(own.Key)).want(403)
		a.call("PUT", "/v1/keys/"+id+"/limits", `{"maxJobs":9}`, shows(own.Key)).want(200)
	}
	a.call("PUT", "/v1/keys/"+own.ID+"/limits", `{"maxJobs":10}`, shows(own.Key)).want(403)
	a.call("PUT", "/v1/keys/"+own.ID+"/limits", `{"maxJobs":0}`, admin).want(200)
}

// eventually repeats a request until it has a status: counts and limits are some seconds old.
func (a *api) eventually(method, path, body string, status int) {
	a.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := a.call(method, path, body)
		if got.status == status {
			return
		}
		if time.Now().After(end) {
			a.Fatalf("%s %s is still answered with %d: %s", method, path, got.status, got.body)
		}
	}
}

// BenchmarkLimits measures a request with limits, beside one without.
func BenchmarkLimits(b *testing.B) {
	for name, l := range map[string]*limits.Limiter{
		"off": nil, "none": limits.New(limits.Config{}),
		"on": limits.New(limits.Config{Key: limits.Limits{Requests: limits.RateOf(1e6, 0)}, Tenant: limits.Limits{Requests: limits.RateOf(1e6, 0)}}),
	} {
		b.Run(name, func(b *testing.B) {
			benchmarkPost(b, handlers.Config{Limiter: l})
		})
	}
}
