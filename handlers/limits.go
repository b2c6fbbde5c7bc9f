package handlers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// limited refuses requests that exceed the limits of their key or tenant, and adds the state of the limits to all other
// answers, in the fields of draft-ietf-httpapi-ratelimit-headers.
func (a *api) limited(c *gin.Context) {
	by := who(c)
	all := a.Limiter.Take(by.key(), by.tenant, a.Now())
	if len(all) == 0 {
		return
	}
	var policies, standings []byte
	for i := range all {
		s := &all[i]
		if i > 0 {
			policies, standings = append(policies, ", "...), append(standings, ", "...)
		}
		policies = field(policies, s.Name, ";q=", s.Burst, ";w=", seconds(s.Window()))
		standings = field(standings, s.Name, ";r=", s.Left, ";t=", seconds(s.Reset))
	}
	c.Header("RateLimit-Policy", string(policies))
	c.Header("RateLimit", string(standings))
	for i := range all {
		if s := &all[i]; s.Exceeded {
			c.Header("Retry-After", strconv.Itoa(seconds(s.Reset)))
			a.writeProblem(c, exceeded(s))
			c.Abort()
		}
	}
}

// field appends a member of a list: a name that needs no escaping, and two parameters.
func field(to []byte, name, first string, n int, second string, m int) []byte {
	to = append(append(append(to, '"'), name...), '"')
	to = strconv.AppendInt(append(to, first...), int64(n), 10)
	return strconv.AppendInt(append(to, second...), int64(m), 10)
}

// exceeded returns the error of a request that exceeds a rate.
func exceeded(s *limits.Standing) error {
	whose := "this key"
	if s.Name == limits.TenantRequests {
		whose = "the tenant"
	}
	return &statusError{http.StatusTooManyRequests, fmt.Sprintf(
		"%s may make %g requests per second, and %d at once (limit %s); try again after the time in Retry-After",
		whose, s.PerSecond, s.Burst, s.Name)}
}

// seconds returns a duration in whole seconds, rounded up; at least 1.
func seconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// limitsOf returns the bounds of each job that a caller submits.
func (a *api) limitsOf(by *caller) job.Limits {
	bounds := a.Limits
	for _, own := range []limits.Limits{a.Limiter.Of(by.tenant), a.Limiter.OfKey(by.Limits)} {
		if own.Payload > 0 {
			bounds.Payload = min(bounds.Payload, own.Payload)
		}
	}
	return bounds
}

// quotaView is a quota that has no room for a submission, as part of a problem.
type quotaView struct {
	Name    string `json:"name"`
	Limit   int    `json:"limit"`
	Present int    `json:"present"`
	Wanted  int    `json:"wanted"`
}

// admission is a submission's reservation of the quotas of its tenant and its key.
type admission struct{ jobs, pending int }

// admitToQuota admits attempts of one tenant to the quotas, and fails those without room. It returns the number of
// attempts that it has handled, from the first one: at the first without room it stops, since settling the attempts
// before may give back unused reservations.
func (a *api) admitToQuota(ctx context.Context, attempts []*attempt) (n int) {
	if !a.Limiter.HasQuota(callerOf(ctx).key(), attempts[0].job.Tenant) {
		return len(attempts)
	}
	unsettled := false
	for i, t := range attempts {
		if t.state == done {
			continue
		}
		admitted, err := a.admitOne(ctx, t.submission)
		full, isFull := errors.AsType[*limits.Exceeded](err)
		switch {
		case isFull && unsettled:
			return i
		case isFull:
			a.Limiter.Refuse(full)
			t.advance(failed, err)
		case err != nil:
			t.advance(failed, err)
		default:
			t.admitted, unsettled = admitted, true
		}
	}
	return len(attempts)
}

// admitOne admits one submission to the quotas. A replacement adds no job, and only the pending occurrences
// that the present job does not have. The job is read for that only if there is no room otherwise.
func (a *api) admitOne(ctx context.Context, s *submission) (admission, error) {
	asked := admission{1, pendingOf(&s.job.Schedule)}
	by := callerOf(ctx).key()
	full := a.Limiter.Admit(ctx, by, s.job.Tenant, asked.jobs, asked.pending)
	if _, isFull := errors.AsType[*limits.Exceeded](full); !isFull {
		return asked, full
	}
	present, err := store.ReadJob(ctx, a.Store, s.job.Name)
	if errors.Is(err, store.ErrNotFound) {
		return admission{}, full
	}
	if err != nil {
		return admission{}, err
	}
	filter := store.OccurrenceFilter{Name: present.Name, Revision: present.Revision, Limit: 1, Count: true}
	_, has, err := a.Store.Occurrences(ctx, filter)
	if err != nil {
		return admission{}, err
	}
	grows := admission{0, max(0, asked.pending-has)}
	return grows, a.Limiter.Admit(ctx, by, s.job.Tenant, grows.jobs, grows.pending)
}

// pendingOf returns the number of occurrences that a schedule adds. A recurring schedule counts as one: the next
// follows only when it has fired.
func pendingOf(s *job.Schedule) int {
	if s.Recurs() {
		return 1
	}
	return s.Weight()
}

// settleQuota settles the reservations of attempts. An attempt with an unknown outcome counts as having used all.
func (a *api) settleQuota(ctx context.Context, attempts []*attempt) {
	by := callerOf(ctx).key()
	for _, t := range attempts {
		o, unused := t.outcome, t.admitted
		switch {
		case errors.Is(o.err, store.ErrUnavailable) && !errors.Is(o.err, store.ErrNotDone):
			unused = admission{}
		case o.err == nil && o.created:
			unused.jobs--
			fallthrough
		case o.err == nil:
			unused.pending -= min(unused.pending, o.occurrences)
		}
		a.Limiter.Settle(by, t.job.Tenant, t.admitted.jobs, t.admitted.pending, unused.jobs, unused.pending)
	}
}

// limitsView has a tenant's limits in the form of the answer.
type limitsView struct {
	Tenant    string             `json:"tenant"`
	Own       limits.TenantDraft `json:"own"`
	Effective limits.TenantDraft `json:"effective"`
}

// getLimits answers with a tenant's own limits, and with the limits that apply: its own, or else the defaults.
func (a *api) getLimits(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	if _, err := a.knownTenant(ctx, name); err != nil {
		return err
	}
	own, err := a.OwnLimits.Get(ctx, name)
	if err != nil {
		return err
	}
	return a.showLimits(c, name, own)
}

func (a *api) showLimits(c *gin.Context, name string, own limits.TenantDraft) error {
	return writeJSON(c, http.StatusOK, limitsView{name, own, a.Limiter.Effective(own)})
}

// putLimits replaces all of a tenant's own limits. The tenant need not be known. It needs a key for all tenants, since
// a tenant must not raise its own limits.
func (a *api) putLimits(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	return change(a, c, limits.ParseTenantDraft, func(ctx context.Context, own limits.TenantDraft) error {
		if _, err := a.tenants.Meet(ctx, []job.Tenant{{Name: name, FirstSeen: a.now()}}); err != nil {
			return err
		}
		if err := a.OwnLimits.Set(ctx, name, own); err != nil {
			return err
		}
		return a.showLimits(c, name, own)
	})
}

// resetLimits restores a tenant's default limits.
func (a *api) resetLimits(c *gin.Context) error {
	name, err := tenantInPath(c)
	if err != nil {
		return err
	}
	return a.changeOnly(c, func(ctx context.Context) error {
		if _, err := a.knownTenant(ctx, name); err != nil {
			return err
		}
		if err := a.OwnLimits.Set(ctx, name, limits.TenantDraft{}); err != nil {
			return err
		}
		return a.showLimits(c, name, limits.TenantDraft{})
	})
}
