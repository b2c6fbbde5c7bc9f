// Package access decides about permissions. A [Principal] makes requests; it has a [Role], which gives its permissions,
// and a [Scope], which limits them to tenants and jobs. That policy is pure: no I/O and no clock. An [Authenticator]
// returns the principal of a token. [Keys] authenticates API keys, which are records of a store.
package access

import (
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/access/limits"
)

// Permission is the right to make requests of one kind. Each route of the API needs one.
type Permission string

// The permissions.
const (
	// Public needs no credentials.
	Public Permission = "public"
	// Read allows to read jobs, dead letters, tenants and the backlog.
	Read Permission = "read"
	// Submit allows to put, change and cancel jobs.
	Submit Permission = "submit"
	// Operate allows to pause, resume and trigger jobs, to redrive and delete dead letters, and to change tenants'
	// settings and secrets.
	Operate Permission = "operate"
	// Administer allows to create, rotate and revoke keys, and to set the limits of tenants.
	Administer Permission = "administer"
)

// Role is a set of permissions.
type Role string

// The roles. Each has all permissions of those before it, and one more.
const (
	Viewer    Role = "viewer"
	Submitter Role = "submitter"
	Operator  Role = "operator"
	Admin     Role = "admin"
)

// Roles returns all roles, the one with the fewest permissions first.
func Roles() []Role { return []Role{Viewer, Submitter, Operator, Admin} }

// Valid reports whether the role exists.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// May reports whether the role has a permission. A role that does not exist has only [Public].
func (r Role) May(p Permission) bool {
	least, known := map[Permission]Role{Read: Viewer, Submit: Submitter, Operate: Operator, Administer: Admin}[p]
	return p == Public || known && slices.Index(Roles(), r) >= slices.Index(Roles(), least)
}

// AllTenants stands for every tenant in a [Scope].
const AllTenants = "*"

// Scope is the part of a store that a principal may see and change.
type Scope struct {
	// Tenants has names of tenants, or only [AllTenants].
	Tenants []string
	// KeyPrefix is the required beginning of its jobs' keys; empty for any key.
	KeyPrefix string
}

// Everything returns the scope without bounds.
func Everything() Scope { return Scope{Tenants: []string{AllTenants}} }

// All reports whether the scope has every tenant.
func (s Scope) All() bool { return slices.Contains(s.Tenants, AllTenants) }

// HasTenant reports whether a tenant is in the scope.
func (s Scope) HasTenant(name string) bool { return s.All() || slices.Contains(s.Tenants, name) }

// HasKey reports whether a job's key is in the scope, for each tenant of the scope.
func (s Scope) HasKey(key string) bool { return strings.HasPrefix(key, s.KeyPrefix) }

// Within reports whether everything in the scope is also in another scope.
func (s Scope) Within(other Scope) bool {
	return other.HasKey(s.KeyPrefix) && !slices.ContainsFunc(s.Tenants, func(name string) bool {
		return !other.HasTenant(name) // also for AllTenants, unless the other scope has all
	})
}

// Principal is a client of the API, known by its credential.
type Principal struct {
	// ID names it in logs and in the audit trail: a key's id, or a token's subject. It is no secret.
	ID    string
	Role  Role
	Scope Scope
	// ExpiresAt is the end of the validity of its key; zero if the key does not expire, or if it has none.
	ExpiresAt time.Time
	// Limits are the own limits of its key; a missing one is that of every key.
	Limits limits.Draft
}

// Anyone returns the principal of all requests if no authentication is configured.
func Anyone() Principal { return Principal{ID: "anyone", Role: Admin, Scope: Everything()} }

// May reports whether the principal has a permission, within its scope.
func (p *Principal) May(permission Permission) bool { return p.Role.May(permission) }
