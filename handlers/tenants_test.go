package handlers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tenant is a tenant in the form of the answer.
type tenant struct {
	Name, FirstSeen, EffectivePriority string
	Settings                           struct {
		Weight      float64
		Priority    string
		MaxInFlight int
		Paused      bool
	}
}

func (a *api) tenant(name string) tenant {
	a.Helper()
	return decode[tenant](a.call("GET", "/v1/tenants/"+name, "").want(200))
}

func TestTenantSettings(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("GET", "/v1/tenants/acme", "").want(404)
	a.call("DELETE", "/v1/tenants/acme", "").want(404)
	a.call("GET", "/v1/tenants/acme", "").want(404) // still

	const all = `{"weight":2.5,"priority":"high","maxInFlight":7,"paused":true}`
	for _, c := range []struct {
		method, body string
		status       int
		want         string // of the settings
		priority     string // that is in effect
	}{
		{"PUT", all, 201, all, "high"},
		{"PUT", `{"priority":"low"}`, 200, `{"weight":1,"priority":"low","paused":false}`, "low"}, // whole: the rest is default again
		{"PUT", all, 200, all, "high"},
		{"DELETE", "", 200, `{"weight":1,"paused":false}`, "normal"},
		{"DELETE", "", 200, `{"weight":1,"paused":false}`, "normal"},
		{"PUT", `{"weight":1000}`, 200, `{"weight":1000,"paused":false}`, "normal"},
		{"PUT", `{}`, 200, `{"weight":1,"paused":false}`, "normal"},
	} {
		paused := ""
		if strings.Contains(c.want, `"paused":true`) {
			paused = fmt.Sprintf(`,"pausedAt":%q,"pausedBy":"anyone"`, job.FormatTime(a.clock()))
		}
		want := fmt.Sprintf(`{"name":"acme","firstSeen":%q,"effectivePriority":%q,"settings":%s%s}`, at(0), c.priority, c.want, paused)
		if got := a.call(c.method, "/v1/tenants/acme", c.body).want(c.status); string(got.body) != want {
			t.Errorf("%s %s is answered\n%s\nwant\n%s", c.method, c.body, got.body, want)
		}
		if got := a.call("GET", "/v1/tenants/acme", "").want(200); string(got.body) != want {
			t.Errorf("after %s %s it is\n%s\nwant\n%s", c.method, c.body, got.body, want)
		}
		a.advance(time.Second)
	}
	a.call("GET", "/v1/tenants/other", "").want(404)
}

// A priority that replicas give by themselves is shown wherever the tenant is, unless its settings name one.
func TestTenantShowsAutomaticPriority(t *testing.T) {
	t.Parallel()
	automatic := map[string]job.Priority{"new": job.PriorityHigh, "large": job.PriorityLow, "set": job.PriorityHigh}
	a := newAPI(t, func(c *handlers.Config) { c.PrioritiesOf = priorities(automatic) })
	settings := map[string]string{"new": `{"weight":2}`, "large": `{}`, "set": `{"priority":"normal"}`, "unknown": `{}`}
	want := map[string]string{"new": "high", "large": "low", "set": "normal", "unknown": "normal"}
	for name, body := range settings {
		for _, status := range []int{201, 200} {
			if got := decode[tenant](a.call("PUT", "/v1/tenants/"+name, body).want(status)); got.EffectivePriority != want[name] {
				t.Errorf("it is put as %+v", got)
			}
		}
		if got := a.tenant(name); got.EffectivePriority != want[name] {
			t.Errorf("it is read as %+v", got)
		}
	}
	listed := decode[struct{ Items []tenant }](a.call("GET", "/v1/tenants", "").want(200)).Items
	for _, got := range listed {
		if got.EffectivePriority != want[got.Name] {
			t.Errorf("it is listed as %+v", got)
		}
	}
	if got := decode[tenant](a.call("DELETE", "/v1/tenants/set", "").want(200)); len(listed) != len(want) || got.EffectivePriority != "high" {
		t.Errorf("%d are listed; without settings it is %+v", len(listed), got)
	}
}

func TestTenantSettingsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
		named   []string
	}{
		"no JSON":       {`{"weight":NaN}`, nil, 400, nil},
		"empty":         {" ", nil, 400, nil},
		"null":          {`null`, nil, 422, []string{""}},
		"unknown field": {`{"share":1}`, nil, 422, []string{"/share"}},
		"all wrong":     {`{"weight":0,"priority":"urgent","maxInFlight":0,"paused":1}`, nil, 422, []string{"/paused", "/weight", "/priority", "/maxInFlight"}},
		"an empty text": {`{"priority":""}`, nil, 422, []string{"/priority"}},
		"too large":     {`{"weight":1,"` + strings.Repeat("x", 4000) + `":1}`, nil, 413, nil},
		"another type":  {`weight=1`, []string{"Content-Type: application/x-www-form-urlencoded"}, 415, nil},
		"conditional":   {`{}`, []string{"If-None-Match: *"}, 400, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := a.call("PUT", "/v1/tenants/acme", c.body, c.headers...).want(c.status)
			if named := got.problem().named(); !slices.Equal(named, c.named) {
				t.Errorf("it names %q, want %q: %s", named, c.named, got.body)
			}
		})
	}
	a.call("PUT", "/v1/tenants/acme?weight=2", `{}`).want(422)
	a.call("DELETE", "/v1/tenants/acme", "", "If-Match: *").want(400)
	a.call("GET", "/v1/tenants/acme", "").want(404)
}

func TestTenantInPath(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, name := range []string{"a%20b", "%C3%BC", "a%2Fb", "a!h", "a%00", strings.Repeat("x", 65)} {
		for method, body := range map[string]string{"GET": "", "PUT": "{}", "DELETE": ""} {
			got := a.call(method, "/v1/tenants/"+name, body).want(422).problem()
			if named := got.named(); !slices.Equal(named, []string{"?tenant"}) || !strings.Contains(got.Errors[0].Message, "1 to 64") {
				t.Errorf("%s %s: %+v", method, name, got)
			}
		}
	}
	a.call("PUT", "/v1/tenants/%61cme", "{}").want(201)
	a.call("PUT", "/v1/tenants/%2E", "{}").want(201)
	if got := a.tenant("acme").Name + a.tenant("%2e").Name; got != "acme." {
		t.Errorf("they are %q", got)
	}
}

// These paths are about all tenants: a key of one tenant may not use them.
func TestTenantsHaveNoSayOverTenants(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, named := range []string{ofAcme, "Carillon-Tenant: default", "Carillon-Tenant: a b"} {
		for _, request := range [][3]string{
			{"GET", "/v1/tenants"}, {"GET", "/v1/tenants/acme"}, {"PUT", "/v1/tenants/acme", "{}"}, {"DELETE", "/v1/tenants/acme"}, {"GET", "/v1/backlog"},
		} {
			got := a.call(request[0], request[1], request[2], named).want(400)
			if p := got.problem(); !strings.Contains(p.Detail, "Carillon-Tenant is not supported here") {
				t.Errorf("%s %s: %s", request[0], request[1], got.body)
			}
		}
	}
	a.call("GET", "/v1/tenants/acme", "").want(404)
}

func TestTenantPages(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	if got := a.call("GET", "/v1/tenants", "").want(200); string(got.body) != `{"items":[]}` {
		t.Errorf("of none: %s", got.body)
	}
	names := []string{"-", "A", "a", "a.b", "b"}
	for _, name := range []string{"b", "a.b", "A", "-", "a"} {
		a.call("PUT", "/v1/tenants/"+name, `{"maxInFlight":3}`).want(201)
	}
	type page struct {
		Items      []tenant
		NextCursor string
	}
	for limit := 1; limit <= 6; limit++ {
		var got []string
		for cursor, more := "", true; more; {
			p := decode[page](a.call("GET", fmt.Sprintf("/v1/tenants?limit=%d%s", limit, cursor), "").want(200))
			for _, i := range p.Items {
				if got = append(got, i.Name); i.Settings.MaxInFlight != 3 || i.FirstSeen != at(0) {
					t.Errorf("it is listed as %+v", i)
				}
			}
			if more = p.NextCursor != ""; more && len(p.Items) != limit {
				t.Errorf("a page of %d has %d", limit, len(p.Items))
			}
			cursor = "&cursor=" + p.NextCursor
		}
		if !slices.Equal(got, names) {
			t.Errorf("in pages of %d they are %q, want %q", limit, got, names)
		}
	}
	for query, named := range map[string]string{"limit=0": "?limit", "limit=1001": "?limit", "cursor=*": "?cursor", "prefix=a": "?prefix"} {
		if got := a.call("GET", "/v1/tenants?"+query, "").want(422).problem().named(); !slices.Equal(got, []string{named}) {
			t.Errorf("%s: it names %q", query, got)
		}
	}
}

// A submission makes its tenant known, with the settings that it had.
func TestSubmissionsMeetTheirTenant(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/tenants/Other_2.eu", `{"weight":9}`).want(201)
	a.advance(time.Minute)
	lines := body("a", time.Hour) + "\n" + body("b", time.Hour)
	for range 2 {
		a.call("PUT", "/v1/jobs/k", body("k", time.Hour))
		a.call("POST", "/v1/jobs", body("k", time.Hour), ofAcme)
		a.call("POST", "/v1/jobs/batch", lines, "Carillon-Tenant: lots", "Content-Type: application/x-ndjson").want(200)
		a.call("PUT", "/v1/jobs/k", body("k", time.Hour), ofOther)
		a.call("PATCH", "/v1/jobs/k", `{"delay":"1h","schedules":null}`, ofOther, "Content-Type: application/merge-patch+json").want(200)
		a.advance(time.Minute)
	}
	for _, name := range []string{"default", "acme", "lots"} {
		if got := a.tenant(name); got.FirstSeen != at(time.Minute) || got.Settings.Weight != 1 {
			t.Errorf("it is %+v", got)
		}
	}
	if got := a.tenant("Other_2.eu"); got.FirstSeen != at(0) || got.Settings.Weight != 9 {
		t.Errorf("it is %+v", got)
	}
	if got := a.store.takeMet(); !slices.Equal(got, []string{"Other_2.eu", "default", "acme", "lots"}) {
		t.Errorf("the store was told of %q: each once", got)
	}
}

// Reads and refused requests make no tenant known; accepted submissions do.
func TestWhatIsRefusedMeetsNobody(t *testing.T) {
	t.Parallel()
	const ofNew = "Carillon-Tenant: new"
	past, later := body("k", -time.Hour), body("k", time.Hour)
	crontab := recurring("k", "@every 1h")
	reject := with(past, "past", "reject")
	for name, c := range map[string]struct {
		method, path, body, header string
		status                     int
	}{
		"a list":                       {"GET", "/v1/jobs", "", "", 200},
		"a preview":                    {"POST", "/v1/preview", later, "", 200},
		"bad input":                    {"POST", "/v1/jobs", `{}`, "", 422},
		"rejected past":                {"PUT", "/v1/jobs/k", reject, "", 422},
		"rejected past in a batch":     {"POST", "/v1/jobs/batch", "[" + reject + "]", "", 200},
		"rejected past, conditionally": {"PUT", "/v1/jobs/k", reject, "If-None-Match: *", 422},
		"an end that has passed":       {"PUT", "/v1/jobs/k", with(crontab, "endAt", at(-time.Hour)), "", 422},
		"no job to replace":            {"PUT", "/v1/jobs/k", later, "If-Match: *", 412},
		"no such version":              {"POST", "/v1/jobs", later, `If-Match: "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N"`, 412},
		"no job to replace, with past": {"PUT", "/v1/jobs/k", past, "If-Match: *", 412},
		"no crontab to replace":        {"PUT", "/v1/jobs/k", crontab, "If-Match: *", 412},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			got := a.call(c.method, c.path, c.body, ofNew, c.header).want(c.status)
			if strings.HasSuffix(c.path, "batch") && !strings.Contains(string(got.body), `"status":422`) {
				t.Errorf("the item has %s", got.body)
			}
			a.call("GET", "/v1/tenants/new", "").want(404)
			if met := a.store.takeMet(); len(met) > 0 {
				t.Errorf("the store was told of %q", met)
			}
			a.advance(time.Minute)
			a.call("PUT", "/v1/jobs/k", later, ofNew, "If-None-Match: *").want(201)
			if got := a.tenant("new").FirstSeen; got != at(time.Minute) {
				t.Errorf("it was first seen at %s", got)
			}
		})
	}
}

// A replica that has not met a tenant yet goes by the job, as any other.
func TestConditionsOfTenantThatAnotherReplicaHasMet(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	b := newAPI(t, func(c *handlers.Config) { c.Store, c.Inspector, c.Records = a.store, a.store, a.store })
	tag := a.call("PUT", "/v1/jobs/k", body("k", time.Hour), ofAcme).want(201).header.Get("ETag")
	b.call("PUT", "/v1/jobs/k", body("k", 2*time.Hour), ofAcme, `If-Match: "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N"`).want(412)
	b.call("PUT", "/v1/jobs/other", body("other", time.Hour), ofAcme, "If-Match: *").want(412)
	b.call("PUT", "/v1/jobs/k", body("k", 2*time.Hour), ofAcme, "If-None-Match: *").want(412)
	tag = b.call("PUT", "/v1/jobs/k", body("k", 2*time.Hour), ofAcme, "If-Match: "+tag).want(200).header.Get("ETag")

	a.store.takeReads()
	a.call("PUT", "/v1/jobs/k", body("k", 3*time.Hour), ofAcme, "If-Match: "+tag).want(200)
	b.call("PUT", "/v1/jobs/k", body("k", 4*time.Hour), ofAcme, "If-Match: "+tag).want(412)
	if n := a.store.takeReads(); n > 0 {
		t.Errorf("for a tenant that is met, the put alone tells; there were %d reads", n)
	}
}

// A tenant that can't be met has no job stored, and the next submission tries again.
func TestTenantThatCannotBeMet(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.store.setTenantFault(store.ErrUnavailable)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(503)
	got := a.call("POST", "/v1/jobs/batch", body("a", time.Hour)+"\n{}\n"+body("b", time.Hour), "Content-Type: application/x-ndjson").want(200)
	var statuses []int
	for _, r := range a.results(asLines, got.body) {
		statuses = append(statuses, r.Status)
	}
	if !slices.Equal(statuses, []int{503, 422, 503}) {
		t.Errorf("the items have %v", statuses)
	}
	for _, request := range [][3]string{{"GET", "/v1/tenants"}, {"GET", "/v1/tenants/a"}, {"PUT", "/v1/tenants/a", "{}"}, {"DELETE", "/v1/tenants/a"}} {
		a.call(request[0], request[1], request[2]).want(503)
	}
	a.call("GET", "/v1/jobs/k", "").want(404)
	if puts := a.store.takePuts(); len(puts) > 0 {
		t.Errorf("there were puts all the same: %+v", puts)
	}
	a.store.setTenantFault(nil)
	a.call("GET", "/v1/tenants/default", "").want(404)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(201)
	a.tenant("default")
}

// One of several racing creations of a tenant creates it, and the stored settings are from one request.
func TestTenantIsCreatedOnce(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var group sync.WaitGroup
	var mu sync.Mutex
	created := 0
	for i := range 8 {
		group.Go(func() {
			got := a.call("PUT", "/v1/tenants/acme", fmt.Sprintf(`{"weight":%d,"maxInFlight":%d}`, i+1, i+1))
			mu.Lock()
			defer mu.Unlock()
			if got.status == 201 {
				created++
			} else if got.status != 200 {
				t.Errorf("status %d", got.status)
			}
		})
	}
	group.Wait()
	if got := a.tenant("acme").Settings; created != 1 || got.Weight != float64(got.MaxInFlight) {
		t.Errorf("it was created %d times, and has %+v", created, got)
	}
}

// The tenants' side of faultyStore.

func (s *faultyStore) setTenantFault(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenantFault = err
}

func (s *faultyStore) failingTenants() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenantFault
}

// takeMet returns the tenants that were met since the last call.
func (s *faultyStore) takeMet() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	met := s.met
	s.met = nil
	return met
}

func (s *faultyStore) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	if err := s.failingTenants(); err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	s.mu.Lock()
	for _, c := range changes {
		if c.If.Absent {
			s.met = append(s.met, c.Key)
		}
	}
	s.mu.Unlock()
	return s.Store.WriteRecords(ctx, changes)
}

func (s *faultyStore) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	if err := s.failingTenants(); err != nil {
		return nil, err
	}
	return s.Store.Records(ctx, f)
}
