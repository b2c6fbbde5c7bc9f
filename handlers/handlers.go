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
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/callbacks"
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
		tenants: tenants.New(config.Records),
	}
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
		handle := a.answer(r.handle)
		switch r.about {
		case aboutItself:
			e.Handle(r.method, r.path, handle)
		case aboutTenant:
			e.Handle(r.method, r.path, a.refuseTenant, handle)
		case aboutAll:
			e.Handle(r.method, r.path, a.refuseAnyTenant, handle)
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

// subject is the extent of a route.
type subject uint8

const (
	aboutItself subject = iota // the service itself
	aboutTenant                // the tenant that a request acts for, see [tenantHeader]
	aboutAll                   // all tenants, whoever asks
)

// routes are all operations. openapi.yaml names the same permissions.
func (a *api) routes() []route {
	return []route{
		{"GET", "/", access.Public, aboutItself, a.showIndex},
		{"GET", "/healthz", access.Public, aboutItself, a.health},
		{"GET", "/readyz", access.Public, aboutItself, a.ready},
		{"GET", "/openapi.yaml", access.Public, aboutItself, specificationYAML},
		{"GET", "/openapi.json", access.Public, aboutItself, specificationJSON},
		{"GET", "/metrics", access.Read, aboutItself, a.showMetrics},

		{"GET", "/v1/jobs", access.Read, aboutTenant, a.listJobs},
		{"POST", "/v1/jobs", access.Submit, aboutTenant, a.postJob},
		{"DELETE", "/v1/jobs", access.Submit, aboutTenant, a.cancelJobs},
		{"POST", "/v1/jobs/batch", access.Submit, aboutTenant, a.postBatch},
		{"GET", "/v1/jobs/:key", access.Read, aboutTenant, a.getJob},
		{"PUT", "/v1/jobs/:key", access.Submit, aboutTenant, a.putJob},
		{"PATCH", "/v1/jobs/:key", access.Submit, aboutTenant, a.patchJob},
		{"DELETE", "/v1/jobs/:key", access.Submit, aboutTenant, a.cancelJob},
		{"GET", "/v1/jobs/:key/preview", access.Read, aboutTenant, a.previewJob},
		{"POST", "/v1/jobs/:key/pause", access.Operate, aboutTenant, a.pauseJob},
		{"POST", "/v1/jobs/:key/resume", access.Operate, aboutTenant, a.resumeJob},
		{"POST", "/v1/jobs/:key/trigger", access.Operate, aboutTenant, a.triggerJob},
		{"POST", "/v1/preview", access.Read, aboutTenant, a.previewDraft},

		{"GET", "/v1/dead-letters", access.Read, aboutTenant, a.listDeadLetters},
		{"DELETE", "/v1/dead-letters", access.Operate, aboutTenant, a.deleteDeadLetters},
		{"POST", "/v1/dead-letters/redrive", access.Operate, aboutTenant, a.redriveMany},
		{"POST", "/v1/dead-letters/:id/redrive", access.Operate, aboutTenant, a.redriveOne},
		{"DELETE", "/v1/dead-letters/:id", access.Operate, aboutTenant, a.deleteDeadLetter},

		{"GET", "/v1/tenants", access.Read, aboutAll, a.listTenants},
		{"GET", "/v1/tenants/:tenant", access.Read, aboutAll, a.getTenant},
		{"PUT", "/v1/tenants/:tenant", access.Operate, aboutAll, a.putTenant},
		{"DELETE", "/v1/tenants/:tenant", access.Operate, aboutAll, a.resetTenant},
		{"GET", "/v1/backlog", access.Read, aboutAll, a.getBacklog},

		{"GET", "/v1/secrets", access.Read, aboutTenant, a.listSecrets},
		{"PUT", "/v1/secrets/:name", access.Operate, aboutTenant, a.putSecret},
		{"DELETE", "/v1/secrets/:name", access.Operate, aboutTenant, a.deleteSecret},
		{"GET", "/v1/signing-secrets", access.Read, aboutTenant, a.listSigningSecrets},
		{"POST", "/v1/signing-secrets", access.Operate, aboutTenant, a.postSigningSecret},
		{"POST", "/v1/signing-secrets/:name/rotate", access.Operate, aboutTenant, a.rotateSigningSecret},
		{"DELETE", "/v1/signing-secrets/:name", access.Operate, aboutTenant, a.deleteSigningSecret},
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

// tenantHeader names the tenant that a request acts for; without it that is [job.DefaultTenant].
const tenantHeader = "Carillon-Tenant"

// tenant is the one that a request acts for.
func (a *api) tenant(c *gin.Context) string {
	if named := c.Request.Header[tenantHeader]; len(named) > 0 {
		return named[0]
	}
	return job.DefaultTenant
}

// refuseTenant refuses a request that does not name one tenant properly.
func (a *api) refuseTenant(c *gin.Context) {
	named := c.Request.Header[tenantHeader]
	if len(named) == 0 || len(named) == 1 && job.ValidTenant(named[0]) {
		return
	}
	a.writeProblem(c, &parameterError{tenantHeader, tenantRule})
	c.Abort()
}

var (
	tenantNames = fmt.Sprintf("1 to %d letters (a to z, A to Z), digits, dots, underscores and hyphens",
		job.MaxTenantBytes)
	tenantRule = fmt.Sprintf("must name one tenant, by %s; without the header it is %q", tenantNames, job.DefaultTenant)
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
