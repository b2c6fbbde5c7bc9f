//go:build services

package redis_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestManyTenants: very many are met by as many scripts as it takes, none of which is long, and a page is one command.
func TestManyTenants(t *testing.T) {
	const n, most = 2500, 1000
	server := newServer(t)
	s := open(t, server.url+"?shards=5")
	want := make([]job.Tenant, n)
	for i := range want {
		want[i] = job.Tenant{Name: fmt.Sprintf("tenant%04d", i), FirstSeen: epoch}
	}
	server.must("config", "resetstat")
	if inserted, err := s.MeetTenants(t.Context(), append(slices.Clone(want), want...)); err != nil || inserted != n {
		t.Fatalf("%d of %d are new, %v", inserted, n, err)
	}
	if ran := server.scripts(); ran < 2*n/most || ran > 2*n/most+1 { // the server had to be told the script
		t.Errorf("%d scripts met them", ran)
	}
	server.must("config", "resetstat")
	page, err := s.Tenants(t.Context(), store.TenantFilter{After: want[9].Name, Limit: most})
	if err != nil || !slices.Equal(page, want[10:10+most]) {
		t.Errorf("a page has %d tenants, %v", len(page), err)
	}
	if got := server.commands(); got["zrange"] != 1 || len(got) != 1 {
		t.Errorf("it took %v", got)
	}
}

// TestMovingTenants: while a cluster moves the tenants' slot, a tenant has the settings that it had or those that it is
// given.
func TestMovingTenants(t *testing.T) {
	server := clusterURL(t)
	url := newStore(t, server, "")
	s := open(t, url)
	_, prefix, _ := strings.Cut(url, "prefix=")
	given := job.Tenant{Name: "acme", FirstSeen: epoch}
	give := func(what string) {
		t.Helper()
		given.Settings.MaxInFlight++
		if err := s.SetTenant(t.Context(), given); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got, err := s.Tenants(t.Context(), store.TenantFilter{Limit: 2}); err != nil || len(got) != 1 || got[0] != given {
			t.Errorf("%s there are %v, %v", what, got, err)
		}
	}
	give("before")
	move := newMove(t, clusterOf(t, server), prefix+":tenants")
	move.begin()
	give("before its key is moved")
	move.key()
	give("after its key was moved")
	move.end()
	give("in the end")
}

// TestUnreadableTenant: one that can't be read is no other tenant, and none with settings that nobody gave.
func TestUnreadableTenant(t *testing.T) {
	for _, rest := range []string{"", "x", "0 {nonsense", "0 {\"weight\":\"x\"}"} {
		server := newServer(t)
		s := open(t, server.url)
		server.must("zadd", "carillon:tenants", 0, "acme\x00"+rest)
		if got, err := s.Tenant(t.Context(), "acme"); err == nil {
			t.Errorf("%q is read as %+v", rest, got)
		}
		if got, err := s.Tenants(t.Context(), store.TenantFilter{Limit: 1}); err == nil {
			t.Errorf("%q is listed as %+v", rest, got)
		}
	}
}
