package handlers

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tenantView is a tenant in the form of the answer.
type tenantView struct {
	Name              string          `json:"name"`
	FirstSeen         string          `json:"firstSeen"`
	EffectivePriority job.Priority    `json:"effectivePriority"`
	Settings          job.TenantDraft `json:"settings"`
	PausedAt          string          `json:"pausedAt,omitzero"`
	PausedBy          string          `json:"pausedBy,omitzero"`
}

// viewTenants shows the priority of the settings even before this replica applies them: it soon will. The callback of a
// tenant's events is only for callers that may read whole tenants, since it may contain addresses and headers.
func (a *api) viewTenants(ctx context.Context, tenants ...job.Tenant) []tenantView {
	priorities := a.prioritiesOf(ctx, tenants)
	views := make([]tenantView, len(tenants))
	for i, t := range tenants {
		priority := cmp.Or(t.Settings.Priority, priorities[i])
		views[i] = tenantView{
			Name: t.Name, FirstSeen: job.FormatTime(t.FirstSeen), EffectivePriority: priority, Settings: t.Settings.Draft(),
			PausedBy: t.Settings.PausedBy,
		}
		if callerOf(ctx).Scope.KeyPrefix != "" {
			views[i].Settings.Events = nil
		}
		if at := t.Settings.PausedAt; at != 0 {
			views[i].PausedAt = job.FormatTime(time.UnixMilli(at))
		}
	}
	return views
}

// prioritiesOf returns the default priorities of tenants' jobs.
func (a *api) prioritiesOf(ctx context.Context, tenants []job.Tenant) []job.Priority {
	if a.PrioritiesOf != nil {
		return a.PrioritiesOf(ctx, tenants)
	}
	priorities := make([]job.Priority, len(tenants))
	for i, t := range tenants {
		priorities[i] = cmp.Or(t.Settings.Priority, job.PriorityNormal)
	}
	return priorities
}

// listTenants answers with a page of the tenants that are in the caller's scope, by name.
func (a *api) listTenants(c *gin.Context) error {
	return listNames(c, func(ctx context.Context, after string, limit int) ([]tenantView, error) {
		tenants, err := a.tenantsIn(ctx, who(c).Scope, after, limit)
		if err != nil {
			return nil, err
		}
		return a.viewTenants(ctx, tenants...), nil
	}, func(v tenantView) string { return v.Name })
}

// tenantsIn reads up to limit of the known tenants in a scope whose names sort after a name, in order.
func (a *api) tenantsIn(ctx context.Context, scope access.Scope, after string, limit int) ([]job.Tenant, error) {
	if scope.All() {
		return a.tenants.List(ctx, after, limit)
	}
	names := slices.DeleteFunc(slices.Clone(scope.Tenants), func(name string) bool { return name <= after })
	tenants, err := a.tenants.Named(ctx, names)
	return tenants[:min(limit, len(tenants))], err
}

// getTenant answers with one tenant.
func (a *api) getTenant(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	t, err := a.knownTenant(ctx, name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, a.viewTenants(ctx, t)[0])
}

// putTenant replaces all settings of a tenant. The tenant need not be known.
func (a *api) putTenant(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	if !who(c).Scope.HasTenant(name) {
		return &statusError{http.StatusForbidden, "your key is not for this tenant"}
	}
	return change(a, c, job.ParseTenantSettings, func(ctx context.Context, settings job.TenantSettings) error {
		if err := a.checkEvents(ctx, name, settings.Events); err != nil {
			return err
		}
		t := job.Tenant{Name: name, FirstSeen: a.now()}
		inserted, err := a.tenants.Meet(ctx, []job.Tenant{t}) // if several requests create it at once, one succeeds
		if err != nil {
			return err
		}
		status := http.StatusOK
		if inserted > 0 {
			status = http.StatusCreated
		}
		return a.setTenant(ctx, c, status, name, settings)
	})
}

// checkEvents checks the callback of a tenant's events as that of a job.
func (a *api) checkEvents(ctx context.Context, tenant string, s *job.EventSettings) error {
	if s == nil {
		return nil
	}
	target := s.Target()
	err := a.Callbacks.Validate(target)
	if err == nil {
		err = a.Callbacks.Granted(tenant, target.Callback)
	}
	if err == nil {
		err = a.checkSecrets(ctx, tenant, target)
	}
	if invalid, ok := errors.AsType[*job.Invalid](err); ok {
		return invalid.Under("/events")
	}
	return err
}

// resetTenant restores the default settings of a tenant.
func (a *api) resetTenant(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	return a.changeOnly(c, func(ctx context.Context) error {
		return a.setTenant(ctx, c, http.StatusOK, name, job.TenantSettings{})
	})
}

// setTenant changes the settings of a known tenant, and answers with the tenant.
func (a *api) setTenant(
	ctx context.Context, c *gin.Context, status int, name string, settings job.TenantSettings,
) error {
	t, err := a.knownTenant(ctx, name) // before the change: after it, an error would hide the change
	if err != nil {
		return err
	}
	switch was := t.Settings; {
	case settings.Paused && was.Paused:
		settings.PausedAt, settings.PausedBy = was.PausedAt, was.PausedBy
	case settings.Paused:
		settings.PausedAt, settings.PausedBy = a.now().UnixMilli(), callerOf(ctx).ID
	}
	t.Settings = settings
	if err := a.tenants.Set(ctx, name, settings, a.now()); err != nil {
		return err
	}
	return writeJSON(c, status, a.viewTenants(ctx, t)[0])
}

var errNoTenant = &statusError{http.StatusNotFound,
	"this tenant is unknown: it has no jobs and no settings yet"}

// knownTenant reads a tenant that is in the caller's scope.
func (a *api) knownTenant(ctx context.Context, name string) (job.Tenant, error) {
	if !callerOf(ctx).Scope.HasTenant(name) {
		return job.Tenant{}, errNoTenant
	}
	t, err := a.tenants.Tenant(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return t, errNoTenant
	}
	return t, err
}

// tenantInPath reads the tenant in a path. The query must be empty.
func tenantInPath(c *gin.Context) (string, error) {
	name, err := nameInPath(c.Param("tenant"))
	if err != nil || !job.ValidTenant(name) {
		return "", &parameterError{"tenant", "must be a tenant's name: " + tenantNames}
	}
	_, err = readQuery(c.Request)
	return name, err
}

// meetAndPut makes the jobs' tenants known, and then puts the jobs. In the other order, a replica that died in between
// would leave an unknown tenant with jobs.
func (a *api) meetAndPut(ctx context.Context, puts []store.Put) []store.PutResult {
	var strangers []job.Tenant
	last := ""
	for i := range puts { // mostly of one tenant
		if name := puts[i].Job.Tenant; name != last && !a.tenants.Met(name) {
			strangers = append(strangers, job.Tenant{Name: name, FirstSeen: puts[i].Now})
			last = name
		}
	}
	if len(strangers) > 0 {
		if _, err := a.tenants.Meet(ctx, strangers); err != nil {
			return slices.Repeat([]store.PutResult{{Err: err}}, len(puts))
		}
	}
	return a.Store.Put(ctx, puts)
}
