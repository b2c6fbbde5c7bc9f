package handlers_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	ofAcme  = "Carillon-Tenant: acme"
	ofOther = "Carillon-Tenant: Other_2.eu"
)

// Every request covers the jobs and dead letters of its tenant, and of no other.
func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	tenants := []string{"Carillon-Tenant: default", ofAcme, ofOther}
	for i, tenant := range tenants {
		a.call("PUT", "/v1/jobs/k", body("k", time.Duration(i+1)*time.Hour), tenant).want(201)
		if got := a.call("POST", "/v1/jobs", body("k", time.Duration(i+1)*time.Hour), tenant).want(200).header.Get("Location"); got != "" {
			t.Errorf("Location %q of what was there", got)
		}
	}
	lines := body("k/1", time.Hour) + "\n" + body("k/2", time.Hour)
	a.call("POST", "/v1/jobs/batch", lines, ofAcme, "Content-Type: application/x-ndjson").want(200)

	keys := func(tenant string) []string {
		var keys []string
		for _, item := range decode[struct{ Items []struct{ Key string } }](a.call("GET", "/v1/jobs?prefix=k", "", tenant).want(200)).Items {
			keys = append(keys, item.Key)
		}
		return keys
	}
	for tenant, want := range map[string][]string{"": {"k"}, tenants[0]: {"k"}, ofAcme: {"k", "k/1", "k/2"}, ofOther: {"k"}, "Carillon-Tenant: new": nil} {
		if got := keys(tenant); !slices.Equal(got, want) {
			t.Errorf("%q has %q, want %q", tenant, got, want)
		}
	}
	for i, tenant := range []string{"", ofAcme, ofOther} {
		if got := decode[definition](a.call("GET", "/v1/jobs/k", "", tenant).want(200)); len(got.Occurrences) != 1 || got.Occurrences[0].Timestamp != at(time.Duration(i+1)*time.Hour) {
			t.Errorf("%q: its job has %+v", tenant, got.Occurrences)
		}
	}

	a.call("POST", "/v1/jobs/k/pause", "", ofAcme).want(200)
	if got := decode[definition](a.call("GET", "/v1/jobs/k", "", ofOther).want(200)).State; got != "scheduled" {
		t.Errorf("a pause of another tenant's job left it %s", got)
	}
	const merge = "Content-Type: application/merge-patch+json"
	for _, request := range []struct{ method, path, body, content string }{
		{"PATCH", "", `{"deadline":"1h"}`, merge}, {"GET", "/preview", "", "Accept: */*"}, {"POST", "/trigger", "", "Accept: */*"},
		{"POST", "/resume", "", "Accept: */*"}, {"GET", "", "", "Accept: */*"}, {"DELETE", "", "", "Accept: */*"},
	} {
		a.call(request.method, "/v1/jobs/k%2F2"+request.path, request.body, ofOther, request.content).want(404)
		if got := a.call(request.method, "/v1/jobs/k%2F2"+request.path, request.body, ofAcme, request.content); got.status >= 300 {
			t.Errorf("%s %s of its own tenant: %d %s", request.method, request.path, got.status, got.body)
		}
	}
	a.call("DELETE", "/v1/jobs/k", "", ofOther).want(200)
	a.call("DELETE", "/v1/jobs?prefix=k", "", "Carillon-Tenant: default").want(200)
	if got := keys(ofAcme); len(got) != 2 {
		t.Errorf("after others have cancelled theirs, it has %q", got)
	}
}

func TestTenantsDeadLettersAreApart(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, tenant := range []string{"", ofAcme, ofOther} {
		a.call("PUT", "/v1/jobs/k", body("k", 0), tenant).want(201)
	}
	for _, c := range a.claim() {
		a.settle(c, store.Bury, "410 Gone")
	}
	list := func(tenant string) letters {
		return decode[letters](a.call("GET", "/v1/dead-letters?prefix=k", "", tenant).want(200))
	}
	theirs := list(ofAcme)
	if len(theirs.Items) != 1 || len(list("").Items) != 1 || list("").Items[0].ID == theirs.Items[0].ID {
		t.Fatalf("dead letters: %+v and %+v", theirs, list(""))
	}
	a.call("POST", "/v1/dead-letters/"+theirs.Items[0].ID+"/redrive", "", ofOther).want(404)
	a.call("DELETE", "/v1/dead-letters/"+theirs.Items[0].ID, "").want(404)
	a.call("POST", "/v1/dead-letters/redrive?key=k", "", ofOther).want(200)
	if len(list(ofOther).Items) != 0 || len(list("").Items) != 1 || len(list(ofAcme).Items) != 1 {
		t.Error("a redrive was not of its own tenant's alone")
	}
}

func TestTenantMustBeNamedProperly(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, name := range []string{"a b", "ü", "a/b", "a,b", "..%2f", "*", strings.Repeat("x", 65)} {
		for _, request := range [][2]string{{"GET", "/v1/jobs"}, {"PUT", "/v1/jobs/k"}, {"DELETE", "/v1/jobs/k"}, {"GET", "/v1/dead-letters"}} {
			content := ""
			if request[0] == "PUT" {
				content = body("k", time.Hour)
			}
			got := a.call(request[0], request[1], content, "Carillon-Tenant: "+name).want(422)
			if p := decode[problem](got); !slices.Equal(p.named(), []string{"?Carillon-Tenant"}) || !strings.Contains(p.Errors[0].Message, "1 to 64") {
				t.Errorf("%s %s of %q: %s", request[0], request[1], name, got.body)
			}
		}
	}
	for _, name := range []string{strings.Repeat("x", 64), ".", "a-B_9.c"} {
		a.call("PUT", "/v1/jobs/k", body("k", time.Hour), "Carillon-Tenant: "+name).want(201)
	}
	a.call("GET", "/healthz", "", "Carillon-Tenant: a b").want(200)
}

// Two names, or an empty one, are no name.
func TestTenantMustBeNamedOnce(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, named := range [][]string{{"a", "b"}, {"a", "a"}, {""}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+"/v1/jobs", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header["Carillon-Tenant"] = named
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%q: %d", named, response.StatusCode)
		}
	}
}
