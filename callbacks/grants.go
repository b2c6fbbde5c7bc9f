package callbacks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/job"
)

// Grants are the permitted destinations of each tenant on a broker. An empty list permits all. It implements
// [flag.Value]: a list has commas between its entries, and an option that is given again adds to it.
type Grants []Grant

// Grant allows a tenant, or every one if it is [EveryTenant], the destinations that match a pattern, in which * stands
// for any text.
type Grant struct{ Tenant, Pattern string }

// EveryTenant is the tenant of a [Grant] for all.
const EveryTenant = "*"

// Set adds a list of grants of the form TENANT=PATTERN.
func (g *Grants) Set(list string) error {
	for entry := range strings.SplitSeq(list, ",") {
		tenant, pattern, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || pattern == "" || tenant != EveryTenant && !job.ValidTenant(tenant) {
			return fmt.Errorf("must be a tenant and a pattern, such as acme=orders.* or *=public.*, with commas between "+
				"several, not %q", entry)
		}
		*g = append(*g, Grant{tenant, pattern})
	}
	return nil
}

// String implements [flag.Value].
func (g Grants) String() string {
	texts := make([]string, len(g))
	for i, one := range g {
		texts[i] = one.Tenant + "=" + one.Pattern
	}
	return strings.Join(texts, ",")
}

// Allow reports whether a tenant may use a destination.
func (g Grants) Allow(tenant, destination string) bool {
	return len(g) == 0 || slices.ContainsFunc(g, func(one Grant) bool {
		return (one.Tenant == EveryTenant || one.Tenant == tenant) && matches(one.Pattern, destination)
	})
}

// matches reports whether a name matches a pattern. Each * takes as little as it can, and the last one the rest.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		if _, name, ok = strings.Cut(name, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(name, parts[last])
}

// Granter is a [Sender] whose operator may say which destinations each tenant may use, see [Grants]. Its Send refuses
// others, see [Refused].
type Granter interface {
	Sender

	// Granted checks callback data that Validate accepted for a tenant. The error is a [*job.Invalid] with pointers into
	// the data.
	Granted(tenant string, data []byte) error
}

// Granted checks that a tenant may use the destination of a callback, which was accepted by Validate. The error is a
// [*job.Invalid] with pointers from the job's root.
func (r *Registry) Granted(tenant string, c job.Callback) error {
	granter, ok := r.senders[c.Type].(Granter)
	if !ok {
		return nil
	}
	err := granter.Granted(tenant, c.Data)
	if invalid, ok := err.(*job.Invalid); ok { //nolint:errorlint // it is one as it is
		return invalid.Under("/callback/data")
	}
	return err
}
