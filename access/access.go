// Package access decides who may do what. A [Principal] is whoever asks; it has a [Role], which says what it may do,
// and a [Scope], which says with which tenants and jobs. That policy is pure: no I/O and no clock. An [Authenticator]
// tells whose token a request has: [Keys] are API keys, which are records of a store.
package access

import (
	"slices"
	"strings"
)

// Permission is what a request needs. Each route of the API needs one.
type Permission string

// The permissions.
const (
	// Public is what anybody may do, with no credentials at all.
	Public Permission = "public"
	// Read shows jobs, dead letters, tenants and the backlog, and changes nothing.
	Read Permission = "read"
	// Submit puts, changes and cancels jobs.
	Submit Permission = "submit"
	// Operate pauses, resumes and triggers jobs, redrives and deletes dead letters, and changes tenants' settings and
	// secrets.
	Operate Permission = "operate"
	// Administer creates, rotates and revokes keys, and sets the limits of tenants.
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

// Roles are all roles, the one with the fewest permissions first.
func Roles() []Role { return []Role{Viewer, Submitter, Operator, Admin} }

// Valid tells whether there is such a role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// May tells whether the role has a permission. A role that does not exist has none but [Public].
func (r Role) May(p Permission) bool {
	least, known := map[Permission]Role{Read: Viewer, Submit: Submitter, Operate: Operator, Administer: Admin}[p]
	return p == Public || known && slices.Index(Roles(), r) >= slices.Index(Roles(), least)
}

// AllTenants stands for every tenant in a [Scope].
const AllTenants = "*"

// Scope is the part of a store that a principal may see and change.
type Scope struct {
	// Tenants are names of tenants, or [AllTenants] alone.
	Tenants []string
	// KeyPrefix is what the keys of its jobs begin with; empty for any key.
	KeyPrefix string
}

// Everything is the scope without bounds.
func Everything() Scope { return Scope{Tenants: []string{AllTenants}} }

// All tells whether the scope has every tenant.
func (s Scope) All() bool { return slices.Contains(s.Tenants, AllTenants) }

// HasTenant tells whether a tenant is within the scope.
func (s Scope) HasTenant(name string) bool { return s.All() || slices.Contains(s.Tenants, name) }

// HasKey tells whether a job's key is within the scope, in any tenant that is.
func (s Scope) HasKey(key string) bool { return strings.HasPrefix(key, s.KeyPrefix) }

// Within tells whether the scope has nothing that another has not.
func (s Scope) Within(other Scope) bool {
	return other.HasKey(s.KeyPrefix) && !slices.ContainsFunc(s.Tenants, func(name string) bool {
		return !other.HasTenant(name) // as it is for AllTenants, unless the other has all
	})
}

// Principal is who asks.
type Principal struct {
	// ID names it in logs and in the audit trail: a key's id, or a token's subject. It is no secret.
	ID    string
	Role  Role
	Scope Scope
}

// Anyone is the principal of all requests where nobody is asked for credentials.
func Anyone() Principal { return Principal{ID: "anyone", Role: Admin, Scope: Everything()} }

// May tells whether the principal has a permission, within its scope.
func (p *Principal) May(permission Permission) bool { return p.Role.May(permission) }
