// Package handlers is Carillon's HTTP API, as openapi.yaml specifies it: it reads and checks requests, hands them to
// the store, and answers. It fires nothing itself.
package handlers

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Config holds the dependencies and the bounds of the API. All of its funcs are called concurrently.
type Config struct {
	// Store, Inspector and Records are sides of the same store.
	Store     store.Jobs
	Inspector store.Inspector
	Records   store.Records
	Callbacks *callbacks.Registry
	// Secrets are those of the same store. Nil can keep none.
	Secrets *secrets.Secrets
	// Wake is called after each submission, with the lane and the earliest instant of its occurrences, so that they fire
	// on time. It must not block. Nil does nothing.
	Wake func(job.Lane, time.Time)
	// WakeExpander is called when a job that recurs may have to be expanded sooner than was known. It must not block. Nil
	// does nothing.
	WakeExpander func()
	// Ready answers why this replica can't do its work, or nil. Clients are shown the error's text. Nil is always
	// ready.
	Ready func(context.Context) error
	// Warnings returns flaws in this replica's surroundings that do not keep it from its work. Clients are shown the
	// texts. Nil has none.
	Warnings func(context.Context) []string
	// PrioritiesOf answers which priority the jobs of tenants have that have none of their own, in the order of the
	// tenants. Nil goes by the tenants' settings.
	PrioritiesOf func(ctx context.Context, tenants []job.Tenant) []job.Priority
	// Destinations returns the state of callbacks' destinations, as far as this replica knows it. Nil knows none.
	Destinations func() []DestinationState
	// Rate answers how many occurrences per second this replica has settled lately; 0 if that is not known. Nil never
	// knows.
	Rate func() float64
	// Replicas counts those that may be claiming at a time. Nil is always one.
	Replicas func(ctx context.Context, now time.Time) (int, error)
	// Limiter bounds what keys and tenants may ask for. Nil bounds nothing.
	Limiter *limits.Limiter
	// OwnLimits are those that tenants have of their own, which the API shows and sets. Nil makes them of Records.
	OwnLimits *limits.Own
	// Limits bound each job.
	Limits job.Limits
	// Expansion bounds the first expansion of a schedule that recurs. It must be the same as the expander's.
	Expansion job.Expansion
	// MaxBody bounds the bytes of a request's body, and of each item of a batch; more than zero.
	MaxBody int64
	// Early is how much ahead of its instant an occurrence may be claimed.
	Early time.Duration
	// Clock is the estimate of the store's clock; nil has none. Versions are stamped and compared by it.
	Clock *clock.Clock
	// Retain is how long a finished job stays readable.
	Retain time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Version is this program's version, shown to clients; empty if it is not known.
	Version string
	// Logger logs failures on the server's side; nil is slog.Default().
	Logger *slog.Logger
	// Traces makes a span of each request to /v1, a child of its caller's; nil makes none.
	Traces trace.TracerProvider
	// Audit is told of each change that is asked for, and of each request that is refused. Nil keeps no trail.
	Audit *audit.Log
	// Metrics answers GET /metrics; nil answers that there is nothing.
	Metrics http.Handler
	// Auth makes out who asks, by the key or token of a request. Nil asks nobody: whoever reaches the API may do
	// everything.
	Auth access.Authenticator
	// Keys are those that the API lists, creates, rotates and revokes. Nil makes them of Records.
	Keys *access.Keys
	// History records each change of a job after it was made; nil records none. What it has recorded is read from Records.
	History Recorder
	// Registerer registers the API's own metrics. Nil has none.
	Registerer prometheus.Registerer
}

// New makes the handler of the whole API. It must see paths as clients sent them: a http.ServeMux in front of it would
// turn away keys that have a dot segment in them.
func New(config Config) http.Handler {
	return compressed(headAsGet{newEngine(config)})
}

// newEngine makes the router.
func newEngine(config Config) *gin.Engine {
	a := &api{
		Config: config.withDefaults(), metrics: newMetrics(config.Registerer), recent: recent{turn: make(chan struct{}, 1)},
		tenants: tenants.New(config.Records), past: history.NewReader(config.Records), anyone: access.Anyone(), wrong: newWrongKeys(),
	}
	a.Store = within{a.Store}
	gin.SetMode(gin.ReleaseMode) // else gin prints each route to standard output
	e := gin.New()
	e.UseEscapedPath = true // so that an escaped slash is part of a key
	e.UnescapePathValues = false
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.HandleMethodNotAllowed = true
	e.Use(nameRequest, a.measure)
	if a.Traces != nil {
		e.Use(traced(a.Traces)) // around recoverPanic, so that it sees the answer to a panic
	}
	if a.Audit != nil {
		e.Use(a.audited())
	}
	e.Use(a.recoverPanic)
	e.NoRoute(a.answer(noRoute))
	e.NoMethod(a.answer(noMethod))

	for _, r := range a.routes() {
		if r.needs == access.Public {
			e.Handle(r.method, r.path, a.answer(r.handle))
		} else {
			e.Handle(r.method, r.path, a.admit(r), a.limited, a.answer(r.handle))
		}
	}
	return e
}

// route is one operation of the API.
type route struct {
	method, path string
	// needs is the permission that whoever asks must have.
	needs access.Permission
	about subject
	// handle answers a request. Its error becomes a problem.
	handle func(*gin.Context) error
}

// subject is the extent of a route: what the scope of whoever asks must have of it, and what it is narrowed to.
type subject uint8

const (
	// aboutItself is about the service itself. It is open to all.
	aboutItself subject = iota
	// aboutJobs is about jobs of the tenant that a request acts for, see [subject.tenantOf]: those in the scope.
	aboutJobs
	// aboutTenant is about that tenant as a whole. A scope with a key prefix has no part of it.
	aboutTenant
	// aboutTenants is about tenants, or keys for them: those in the scope.
	aboutTenants
	// aboutWholeTenants is about tenants as a whole: those in the scope, which must have no key prefix.
	aboutWholeTenants
	// aboutEverything is about all tenants at once. The scope must have everything.
	aboutEverything
)

// wholly tells whether a scope with a key prefix is too narrow.
func (s subject) wholly() bool {
	return s == aboutTenant || s == aboutWholeTenants || s == aboutEverything
}

// routes are all operations. openapi.yaml names the same permissions.
func (a *api) routes() []route {
	return []route{
		{"GET", "/", access.Public, aboutItself, a.showIndex},
		{"GET", "/healthz", access.Public, aboutItself, a.health},
		{"GET", "/readyz", access.Public, aboutItself, a.ready},
		{"GET", "/openapi.yaml", access.Public, aboutItself, specificationYAML},
		{"GET", "/openapi.json", access.Public, aboutItself, specificationJSON},
		{"GET", "/metrics", access.Read, aboutEverything, a.showMetrics},

		{"GET", "/v1/jobs", access.Read, aboutJobs, a.listJobs},
		{"POST", "/v1/jobs", access.Submit, aboutJobs, a.postJob},
		{"DELETE", "/v1/jobs", access.Submit, aboutJobs, a.cancelJobs},
		{"POST", "/v1/jobs/batch", access.Submit, aboutJobs, a.postBatch},
		{"GET", "/v1/jobs/:key", access.Read, aboutJobs, a.getJob},
		{"PUT", "/v1/jobs/:key", access.Submit, aboutJobs, a.putJob},
		{"PATCH", "/v1/jobs/:key", access.Submit, aboutJobs, a.patchJob},
		{"DELETE", "/v1/jobs/:key", access.Submit, aboutJobs, a.cancelJob},
		{"GET", "/v1/jobs/:key/history", access.Read, aboutJobs, a.getJobHistory},
		{"GET", "/v1/jobs/:key/preview", access.Read, aboutJobs, a.previewJob},
		{"POST", "/v1/jobs/:key/pause", access.Operate, aboutJobs, a.pauseJob},
		{"POST", "/v1/jobs/:key/resume", access.Operate, aboutJobs, a.resumeJob},
		{"POST", "/v1/jobs/:key/trigger", access.Operate, aboutJobs, a.triggerJob},
		{"POST", "/v1/preview", access.Read, aboutJobs, a.previewDraft},

		{"GET", "/v1/history", access.Read, aboutJobs, a.listHistory},

		{"GET", "/v1/dead-letters", access.Read, aboutJobs, a.listDeadLetters},
		{"DELETE", "/v1/dead-letters", access.Operate, aboutJobs, a.deleteDeadLetters},
		{"POST", "/v1/dead-letters/redrive", access.Operate, aboutJobs, a.redriveMany},
		{"POST", "/v1/dead-letters/:id/redrive", access.Operate, aboutJobs, a.redriveOne},
		{"DELETE", "/v1/dead-letters/:id", access.Operate, aboutJobs, a.deleteDeadLetter},

		{"GET", "/v1/tenants", access.Read, aboutTenants, a.listTenants},
		{"GET", "/v1/tenants/:tenant", access.Read, aboutTenants, a.getTenant},
		{"PUT", "/v1/tenants/:tenant", access.Operate, aboutWholeTenants, a.putTenant},
		{"DELETE", "/v1/tenants/:tenant", access.Operate, aboutWholeTenants, a.resetTenant},

		{"GET", "/v1/tenants/:tenant/limits", access.Read, aboutTenants, a.getLimits},
		{"PUT", "/v1/tenants/:tenant/limits", access.Administer, aboutEverything, a.putLimits},
		{"DELETE", "/v1/tenants/:tenant/limits", access.Administer, aboutEverything, a.resetLimits},

		{"GET", "/v1/keys", access.Administer, aboutTenants, unkept(a.listKeys)},
		{"POST", "/v1/keys", access.Administer, aboutTenants, unkept(a.createKey)},
		{"GET", "/v1/keys/:id", access.Administer, aboutTenants, unkept(a.getKey)},
		{"DELETE", "/v1/keys/:id", access.Administer, aboutTenants, unkept(a.revokeKey)},
		{"POST", "/v1/keys/:id/rotate", access.Administer, aboutTenants, unkept(a.rotateKey)},

		{"GET", "/v1/secrets", access.Read, aboutTenant, a.listSecrets},
		{"PUT", "/v1/secrets/:name", access.Operate, aboutTenant, a.putSecret},
		{"DELETE", "/v1/secrets/:name", access.Operate, aboutTenant, a.deleteSecret},
		{"GET", "/v1/signing-secrets", access.Read, aboutTenant, a.listSigningSecrets},
		{"POST", "/v1/signing-secrets", access.Operate, aboutTenant, unkept(a.postSigningSecret)},
		{"POST", "/v1/signing-secrets/:name/rotate", access.Operate, aboutTenant, unkept(a.rotateSigningSecret)},
		{"DELETE", "/v1/signing-secrets/:name", access.Operate, aboutTenant, a.deleteSigningSecret},

		{"GET", "/v1/backlog", access.Read, aboutWholeTenants, a.getBacklog},
	}
}

func (c Config) withDefaults() Config {
	if c.Wake == nil {
		c.Wake = func(job.Lane, time.Time) {}
	}
	if c.WakeExpander == nil {
		c.WakeExpander = func() {}
	}
	if c.Ready == nil {
		c.Ready = func(context.Context) error { return nil }
	}
	if c.Warnings == nil {
		c.Warnings = func(context.Context) []string { return nil }
	}
	if c.Destinations == nil {
		c.Destinations = func() []DestinationState { return nil }
	}
	if c.Rate == nil {
		c.Rate = func() float64 { return 0 }
	}
	if c.Replicas == nil {
		c.Replicas = func(context.Context, time.Time) (int, error) { return 1, nil }
	}
	if c.Keys == nil {
		c.Keys = access.NewKeys(c.Records)
	}
	if c.OwnLimits == nil {
		c.OwnLimits = limits.NewOwn(c.Records, c.Logger)
	}
	if c.Clock == nil {
		c.Clock = &clock.Clock{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Secrets == nil {
		c.Secrets = secrets.New(c.Records, &secrets.Keyring{}, c.Logger)
	}
	return c
}

// api has the handlers as its methods.
type api struct {
	Config
	metrics *metrics
	recent  recent
	tenants *tenants.Tenants
	past    *history.Reader
	anyone  access.Principal
	wrong   *wrongKeys
}

// answer makes a gin handler of one that answers its errors as a problem.
func (a *api) answer(handle func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := handle(c); err != nil {
			a.writeProblem(c, err)
		}
	}
}

// now is the present time, as whole milliseconds.
func (a *api) now() time.Time { return a.Now().UTC().Truncate(time.Millisecond) }

// tenantHeader names the tenant that a request acts for. Without it that is [job.DefaultTenant], or the one tenant that
// a key is for.
const tenantHeader = "Carillon-Tenant"

var (
	tenantNames = fmt.Sprintf("1 to %d letters (a to z, A to Z), digits, dots, underscores and hyphens",
		job.MaxTenantBytes)
	tenantRule = fmt.Sprintf("must name one tenant, by %s; without the header it is %q, or that of a key for one tenant",
		tenantNames, job.DefaultTenant)
)

// wakeTenant tells that something of a tenant is due, in whichever lane.
func (a *api) wakeTenant(tenant string, now time.Time) {
	for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
		a.Wake(job.Lane{Tenant: tenant, Priority: p}, now)
	}
}

// stamp takes a version, by the store's clock if that is known: never a later one than it shows.
func (a *api) stamp() job.Revision {
	if theirs, known := a.Clock.Earliest(time.Now()); known {
		return job.NewRevision(theirs)
	}
	return job.NewRevision(a.now())
}

// inTime is the context of a change that a request asks for, which ends when the change may no longer take effect, and
// the versions that were taken after the request had arrived, and before that.
func (a *api) inTime(r *http.Request) (context.Context, context.CancelFunc, store.Span) {
	asked := arrival(r)
	return a.between(r.Context(), asked, asked.Add(store.Within))
}

// between is that of a change, or a part of one, that was asked for at a time, and may take effect until another.
func (a *api) between(ctx context.Context, asked, over time.Time) (context.Context, context.CancelFunc, store.Span) {
	ctx, cancel := context.WithDeadline(ctx, over)
	return ctx, cancel, a.Clock.Newer(asked, over)
}

// storeTime bounds the calls to the store that one request makes, or that each slice of a long one makes.
const storeTime = store.Within

// headAsGet answers HEAD as it would GET; the server leaves the body out.
type headAsGet struct {
	next http.Handler
}

func (h headAsGet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		get := *r // the server goes by its own request when it decides on the body
		get.Method = http.MethodGet
		r = &get
	}
	h.next.ServeHTTP(w, r)
}

// noMethod answers a method that a path does not have. The router has set Allow.
func noMethod(c *gin.Context) error {
	allow := strings.Split(c.Writer.Header().Get("Allow"), ", ")
	if slices.Contains(allow, http.MethodGet) {
		allow = append(allow, http.MethodHead)
	}
	if slices.Contains(allow, http.MethodPatch) {
		c.Header("Accept-Patch", strings.Join(patchTypes, ", "))
	}
	allow = append(allow, http.MethodOptions)
	slices.Sort(allow)
	c.Header("Allow", strings.Join(allow, ", "))
	if c.Request.Method == http.MethodOptions {
		writeNoBody(c, http.StatusNoContent)
		return nil
	}
	return &statusError{http.StatusMethodNotAllowed, "this path takes " + strings.Join(allow, ", ")}
}
