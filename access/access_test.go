package access_test

import (
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon/access"
)

func TestRoles(t *testing.T) {
	all := []access.Permission{access.Public, access.Read, access.Submit, access.Operate, access.Administer}
	has := map[access.Role]int{"": 1, "root": 1, access.Viewer: 2, access.Submitter: 3, access.Operator: 4, access.Admin: 5}
	for role, n := range has {
		for i, permission := range all {
			if got := role.May(permission); got != (i < n) {
				t.Errorf("role %q: may %s: %t", role, permission, got)
			}
		}
		if role.May("") || role.May("everything") {
			t.Errorf("role %q has a permission that does not exist", role)
		}
		if role.Valid() != (n > 1) {
			t.Errorf("role %q: valid: %t", role, role.Valid())
		}
	}
	if !slices.Equal(access.Roles(), []access.Role{access.Viewer, access.Submitter, access.Operator, access.Admin}) {
		t.Error(access.Roles())
	}
}

func TestScopes(t *testing.T) {
	two := access.Scope{Tenants: []string{"acme", "bolt"}}
	prefixed := access.Scope{Tenants: []string{"acme"}, KeyPrefix: "mail/"}
	for _, c := range []struct {
		scope       access.Scope
		tenant, key string
		want        bool
	}{
		{access.Everything(), "acme", "k", true},
		{access.Scope{}, "acme", "k", false},
		{access.Scope{}, "", "k", false},
		{two, "bolt", "k", true},
		{two, "bol", "k", false},
		{two, "*", "k", false},
		{prefixed, "acme", "mail/1", true},
		{prefixed, "acme", "mail", false},
		{prefixed, "acme", "Mail/1", false},
		{prefixed, "bolt", "mail/1", false},
	} {
		if got := c.scope.HasTenant(c.tenant) && c.scope.HasKey(c.key); got != c.want {
			t.Errorf("%+v has %s/%s: %t", c.scope, c.tenant, c.key, got)
		}
	}
	narrow := access.Scope{Tenants: []string{"acme"}, KeyPrefix: "mail/news/"}
	for _, c := range []struct {
		inner, outer access.Scope
		want         bool
	}{
		{access.Everything(), access.Everything(), true},
		{two, access.Everything(), true},
		{access.Everything(), two, false},
		{access.Scope{Tenants: []string{"acme"}}, two, true},
		{access.Scope{Tenants: []string{"acme", "other"}}, two, false},
		{narrow, prefixed, true},
		{prefixed, narrow, false},
		{access.Scope{Tenants: []string{"acme"}}, prefixed, false},
		{two, access.Scope{}, false},
	} {
		if got := c.inner.Within(c.outer); got != c.want {
			t.Errorf("%+v within %+v: %t", c.inner, c.outer, got)
		}
	}
}
