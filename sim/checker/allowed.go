package checker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Permissions are those of a caller's key.
type Permissions struct {
	// Role is viewer, submitter, operator or admin: each may do all that those before it may.
	Role string
	// Tenants are the key's, or "*" for all.
	Tenants []string
	// Prefix is the beginning of the keys of all jobs that there are for it.
	Prefix string
	// Expires is when the key expires; zero for never.
	Expires time.Time
}

// Rule is an operator's rule about a receiver.
type Rule struct {
	// Tenants are those whose jobs may call it.
	Tenants []string
	// Later is set if only the sending tells whether it may be called: a job is accepted, and may end as a dead letter
	// without an attempt that a receiver sees.
	Later bool
}

// leastRole is the least role for each kind of operation.
var leastRole = map[Kind]string{
	Get: "viewer", List: "viewer", Preview: "viewer",
	Put: "submitter", Create: "submitter", Replace: "submitter", Amend: "submitter", Cancel: "submitter",
	Pause: "operator", Resume: "operator", Trigger: "operator", Redrive: "operator",
	Discard: "operator", Settings: "operator", Quota: "admin",
}

var roles = []string{"viewer", "submitter", "operator", "admin"}

// refusal returns the status with which an operation must be refused, by its caller's permissions or by the operator's
// rules; 200 if the answer must be that there is nothing, and 0 if it is allowed.
func (h *History) refusal(o *Op) int {
	p, limited := h.Permissions[o.Caller]
	switch {
	case o.aboutKey() || !limited: // an operator
	case slices.Index(roles, p.Role) < slices.Index(roles, leastRole[o.Kind]),
		!slices.Contains(p.Tenants, "*") && !slices.Contains(p.Tenants, o.Tenant):
		return http.StatusForbidden
	case o.Kind == List, o.Kind == Preview, strings.HasPrefix(o.Key, p.Prefix):
	case o.Kind == Redrive, o.Kind == Discard, o.Prefix != "":
		return http.StatusOK
	case o.Kind == Put, o.Kind == Create, o.Key == "":
		return http.StatusForbidden
	default:
		return http.StatusNotFound
	}
	if r, ruled := h.Rules[o.To]; ruled && !r.Later && !slices.Contains(r.Tenants, o.Tenant) {
		return http.StatusUnprocessableEntity
	}
	return 0
}

// allowed returns the history without the operations that must be refused. These change nothing: whatever they change
// all the same breaks another rule, since no operation of the rest explains it.
func (h *History) allowed() *History {
	rest := *h
	rest.Ops = slices.DeleteFunc(slices.Clone(h.Ops), func(o Op) bool { return h.refusal(&o) != 0 })
	return &rest
}

// refusals: a request beyond a key's permissions is refused, as if data beyond its scope did not exist; no other
// request is forbidden; and nothing is called that the operator does not allow.
func (h *History) refusals() (found []Violation) {
	const permissions, rules = "a key's permissions hold", "only what is allowed is called"
	for i := range h.Ops {
		o := &h.Ops[i]
		report := func(rule, format string, args ...any) {
			text := fmt.Sprintf("a %s by %q in tenant %q was answered with %d, ", o.Kind, o.Caller, o.Tenant, o.Status)
			found = append(found, Violation{Rule: rule, Key: o.Key, At: o.Returned, Text: text + fmt.Sprintf(format, args...)})
		}
		told := o.Status != 0 && o.Status < 500 && o.Status != http.StatusUnauthorized // the key may not be known by now
		switch must := h.refusal(o); {
		case must == http.StatusUnprocessableEntity:
			if o.succeeded() {
				report(rules, "though its tenant may not call %s", o.To)
			}
		case must != 0 && told && (o.Status != must || o.Redriven+o.Deleted > 0):
			report(permissions, "and its key does not permit it: it must be %d", must)
		case must == 0 && o.Status == http.StatusUnprocessableEntity && o.To != "" &&
			len(o.Schedule.Instants) > 0 && !h.mayReject(o):
			report(rules, "though its tenant may call %s", o.To)
		case must == 0 && o.Status == http.StatusForbidden && !h.mayHaveQuota(o):
			report(permissions, "though its key permits it")
		}
		for _, key := range o.Listed {
			if !strings.HasPrefix(key, h.Permissions[o.Caller].Prefix) || h.isOfAnother(key, o.Tenant) {
				report(permissions, "and lists job %s, which is beyond its scope", key)
			}
		}
	}
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		if r, ruled := h.Rules[d.To]; ruled && !slices.Contains(r.Tenants, d.Tenant) {
			found = append(found, Violation{
				Rule: rules, Key: d.Key, At: d.Begun,
				Text: fmt.Sprintf("instant %s was fired at %s, which tenant %q may not call",
					d.Instant.Sub(h.Begun), d.To, d.Tenant),
			})
		}
	}
	return found
}

// mayHaveQuota reports whether a put may be forbidden by a quota of its tenant.
func (h *History) mayHaveQuota(o *Op) bool {
	return o.puts() && slices.ContainsFunc(h.Ops, func(q Op) bool {
		return q.Kind == Quota && q.Tenant == o.Tenant && q.maybe() && q.Invoked.Before(o.Returned)
	})
}

// isOfAnother reports whether a job's key is that of another tenant.
func (h *History) isOfAnother(key, tenant string) bool {
	return slices.ContainsFunc(h.Ops, func(o Op) bool { return o.Key == key && o.Tenant != tenant })
}

// mayBeUnsent reports whether an occurrence of the key may be a dead letter that was not sent, since its receiver must
// not be called.
func (k *keyed) mayBeUnsent() bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool { return k.Rules[o.To].Later && o.maybe() })
}
