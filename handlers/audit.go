package handlers

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/job"
)

// auditKey is the context key of the audit entry of a request that is always audited.
const auditKey = "audit"

// audited writes a line of the audit trail for each request that may change something, with any answer; and for each
// other request that is refused, or names an object beyond its caller's scope.
func (a *api) audited() gin.HandlerFunc {
	routes := make(map[string]route)
	for _, r := range a.routes() {
		routes[r.method+r.path] = r
	}
	return func(c *gin.Context) {
		entry := &audit.Entry{}
		asked := routes[c.Request.Method+c.FullPath()] // none, if there is no such path
		changes := asked.method != "" && asked.needs != access.Public && asked.needs != access.Read
		if changes {
			c.Set(auditKey, entry)
		}
		answered := false
		defer func() { // also when the connection is broken by a panic
			if status := c.Writer.Status(); changes || refused(status) || beyondScope(c) {
				a.complete(entry, c, asked.about, status)
				if !answered {
					entry.Result = audit.Broken
				}
				a.writeAudit(*entry)
			}
		}()
		c.Next()
		answered = true
	}
}

// refused reports whether a status refuses a request or an item because of its caller's permissions or rate.
func refused(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests
}

// beyondScope reports whether a request names a job or a tenant beyond its caller's scope. The answer does not show
// that: it is the same as for an object that does not exist.
func beyondScope(c *gin.Context) bool {
	w := who(c)
	if w == nil {
		return false
	}
	key, tenant := c.Query("key"), ""
	for _, p := range c.Params {
		switch p.Key {
		case "key":
			key = unescaped(p.Value)
		case "tenant":
			tenant = unescaped(p.Value)
		}
	}
	return key != "" && !w.Scope.HasKey(key) || tenant != "" && !w.Scope.HasTenant(tenant)
}

// unescaped returns the value of a path parameter; a malformed one as it was sent.
func unescaped(value string) string {
	if plain, err := nameInPath(value); err == nil {
		return plain
	}
	return value
}

// complete fills in the fields that follow from the request and from its answer, or the answer to one of its items.
func (a *api) complete(e *audit.Entry, c *gin.Context, about subject, status int) {
	e.Time, e.Status, e.Result = a.now(), status, audit.ResultOf(status)
	e.RequestID, e.From = requestID(c.Request), c.Request.RemoteAddr
	if w := who(c); w != nil { // else the principal is unknown
		e.Principal, e.Tenant = w.ID, w.tenant
	}
	e.Action = c.Request.Method + " " + c.FullPath()
	if c.FullPath() == "" { // clients can make up any path
		e.Action, e.Target = c.Request.Method, c.Request.URL.EscapedPath()
	}
	e.Query = c.Request.URL.RawQuery
	if e.Tenant == "" && (about == aboutJobs || about == aboutTenant) { // it was refused
		e.Tenant = c.Request.Header.Get(tenantHeader)
	}
	for _, p := range c.Params {
		if p.Key == "key" {
			e.Key = unescaped(p.Value)
		} else {
			e.Target = unescaped(p.Value)
		}
	}
	if status < http.StatusMultipleChoices && e.Key != "" {
		e.Version = versionOf(c.Writer.Header().Get("ETag"))
	}
}

// writeAudit writes a line of the trail. API keys in places where they do not belong, such as a path or a query, are
// masked.
func (a *api) writeAudit(e audit.Entry) {
	for _, text := range []*string{&e.Tenant, &e.Key, &e.Target, &e.Query} {
		*text = access.MaskTokens(*text)
	}
	a.Audit.Write(e)
}

// auditOf returns the audit entry of a request, for the details that neither the path nor the answer has. For a request
// that is not always audited, it returns an entry that is never written.
func auditOf(c *gin.Context) *audit.Entry {
	if e, ok := c.Get(auditKey); ok {
		return e.(*audit.Entry)
	}
	return &audit.Entry{}
}

// auditItem writes a line for a batch item that changed a job or was refused. The batch's own line has counts only.
func (a *api) auditItem(c *gin.Context, key string, status int, version job.Revision) {
	e := auditOf(c)
	if status >= http.StatusBadRequest {
		e.Failed++
	} else {
		e.Changed++
	}
	if a.Audit == nil || status >= http.StatusBadRequest && !refused(status) {
		return
	}
	item := audit.Entry{}
	a.complete(&item, c, aboutJobs, status)
	item.Key, item.Version = key, string(version)
	a.writeAudit(item)
}

// versionOf returns the version at the start of an entity tag, see [tagOf].
func versionOf(tag string) string {
	version, _, _ := strings.Cut(strings.Trim(tag, `"`), "-")
	return version
}
