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
	"github.com/carillon-scheduler/carillon/access/sessions"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/backlog"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/explain/facts"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Config holds the dependencies and the bounds of the API. Its funcs are called concurrently.
type Config struct {
	// Store, Inspector and Records are sides of the same store.
	Store     store.Jobs
	Inspector store.Inspector
	Records   store.Records
	Callbacks *callbacks.Registry
	// Secrets has the secrets of the same store. With nil, the API can't store secrets.
	Secrets *secrets.Secrets
	// Wake is called after each submission, with the lane and the earliest instant of its occurrences, so that they fire
	// on time. It must not block. It may be nil.
	Wake func(job.Lane, time.Time)
	// WakeExpander is called when a recurring job may need an earlier expansion. It must not block. It may be nil.
	WakeExpander func()
	// Ready returns the reason that this replica can't do its work, or nil. Clients see the error's text. A nil func means
	// always ready.
	Ready func(context.Context) error
	// Warnings returns problems in this replica's surroundings that do not stop its work. Clients see the texts. It may be
	// nil.
	Warnings func(context.Context) []string
	// PrioritiesOf returns the default priorities of tenants' jobs, in the order of the tenants. Nil means the tenants'
	// settings.
	PrioritiesOf func(ctx context.Context, tenants []job.Tenant) []job.Priority
	// Destinations returns the destinations of callbacks that this replica knows, with their states. It may be nil.
	Destinations func() []DestinationState
	// Rate returns the occurrences per second that this replica has settled lately; 0 if unknown. Nil means unknown.
	Rate func() float64
	// Replicas returns the number of replicas that may be claiming at a time. Nil means one.
	Replicas func(ctx context.Context, now time.Time) (int, error)
	// Replica describes this replica and the others.
	Replica Replica
	// Forecast has the inputs of forecasts. The zero value makes none. Explanations use its Policy.
	Forecast Forecast
	// Crowded is the number of occurrences within one second beyond which answers to submissions mark an instant as
	// crowded; 0 for never.
	Crowded int
	// Limiter has the rates and quotas of keys and tenants. Nil means no limits.
	Limiter *limits.Limiter
	// OwnLimits has the limits of single tenants, which the API shows and sets. Nil means those in Records.
	OwnLimits *limits.Own
	// Limits bound each job.
	Limits job.Limits
	// Expansion bounds the first expansion of a recurring schedule. It must equal the expander's.
	Expansion job.Expansion
	// MaxBody bounds the bytes of a request's body, and of each item of a batch; more than zero.
	MaxBody int64
	// Early is the time before its instant at which an occurrence may be claimed.
	Early time.Duration
	// Clock is the estimate of the store's clock, for the time stamps in versions. It may be nil.
	Clock *clock.Clock
	// Retain is the time for which a finished job stays readable.
	Retain time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Version is this program's version, shown to clients; empty if unknown.
	Version string
	// Logger logs failures on the server's side; nil is slog.Default().
	Logger *slog.Logger
	// Traces makes a span for each request to /v1, a child of its caller's span. Nil makes none.
	Traces trace.TracerProvider
	// Audit gets an entry for each requested change and for each refused request. Nil keeps no trail.
	Audit *audit.Log
	// Metrics answers GET /metrics. Nil means 404.
	Metrics http.Handler
	// Auth returns the principal of a request's key or token. Nil means no authentication: every client may do everything.
	Auth access.Authenticator
	// LocalOnly refuses requests whose host is a name other than localhost, if the API has no authentication. Otherwise a
	// web page could resolve its own name to this machine, and a browser would take the API for a part of that site.
	LocalOnly bool
	// Keys has the API keys, for the routes that manage them. Nil means those in Records.
	Keys *access.Keys
	// History records each change of a job after it was made; nil records none. The history is read from Records.
	History Recorder
	// Events gets the entries of instants that were missed at their submission; nil means no events.
	Events Recorder
	// HistoryPolicy is the retention policy of tenants that have none of their own. Explanations report by it which
	// history is not kept. Zero means that it is unknown.
	HistoryPolicy history.Policy
	// Registerer registers the API's own metrics. Nil means none.
	Registerer prometheus.Registerer
}

// New returns the handler of the whole API. It must see paths as clients sent them: an http.ServeMux in front of it
// would refuse keys that contain a dot segment.
func New(config Config) http.Handler {
	return compressed(headAsGet{newEngine(config)})
}

// newEngine makes the router.
func newEngine(config Config) *gin.Engine {
	a := &api{
		Config: config.withDefaults(), metrics: newMetrics(config.Registerer),
		tenants: tenants.New(config.Records), past: history.NewReader(config.Records),
		anyone: access.Anyone(), wrong: access.NewTries(), keyless: access.NewTries(),
		plans:    forecast.NewReader(config.Forecast.Definitions, config.Callbacks.Destination, forecast.DefaultBounds),
		sessions: sessions.New(config.Records),
	}
	if a.Forecast.Definitions != nil {
		a.crowd = forecast.NewCrowd(a.plans, a.Crowded)
		if a.Registerer != nil {
			a.Registerer.MustRegister(a.plans.Collector(a.Now, a.Forecast.Every))
		}
	}
	a.backlog = backlog.NewReader(backlog.Config{
		Inspector: a.Inspector, Tenants: a.tenants, DestinationOf: a.Callbacks.Destination, Destinations: a.Destinations,
		PrioritiesOf: a.prioritiesOf, Rate: a.Rate, Replicas: a.Replicas, Now: a.Now,
	})
	a.Store = within{a.Store}
	a.facts = a.newFacts()
	gin.SetMode(gin.ReleaseMode) // else gin prints each route to standard output
	e := gin.New()
	e.UseEscapedPath = true // so that an escaped slash is part of a key
	e.UnescapePathValues = false
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.HandleMethodNotAllowed = true
	e.Use(nameRequest, a.measure)
	if a.Traces != nil {
		e.Use(traced(a.Traces)) // around recoverPanic, to see the answer to a panic
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
	// needs is the permission that the caller must have.
	needs access.Permission
	about subject
	// handle answers a request. Its error becomes a problem.
	handle func(*gin.Context) error
}

// subject is the extent of a route: the scope that its caller must have, and the part of the data that it covers.
type subject uint8

const (
	// aboutItself: the service itself. The route is open to all.
	aboutItself subject = iota
	// aboutJobs: the jobs of the request's tenant (see [subject.tenantOf]) that are in the scope.
	aboutJobs
	// aboutTenant: the request's tenant as a whole. The scope must have no key prefix.
	aboutTenant
	// aboutTenants: the tenants in the scope, or keys for them.
	aboutTenants
	// aboutWholeTenants: the tenants in the scope, each as a whole. The scope must have no key prefix.
	aboutWholeTenants
	// aboutEverything: all tenants at once. The scope must have all tenants and no key prefix.
	aboutEverything
)

// wholly reports whether the scope must have no key prefix.
func (s subject) wholly() bool {
	return s == aboutTenant || s == aboutWholeTenants || s == aboutEverything
}

// routes returns all operations. openapi.yaml names the same permissions.
func (a *api) routes() []route {
	return []route{
		{"GET", "/", access.Public, aboutItself, a.showIndex},
		{"GET", "/healthz", access.Public, aboutItself, a.health},
		{"GET", "/readyz", access.Public, aboutItself, a.ready},
		{"GET", "/openapi.yaml", access.Public, aboutItself, specificationYAML},
		{"GET", "/openapi.json", access.Public, aboutItself, specificationJSON},
		{"GET", "/schemas/job.json", access.Public, aboutItself, jobSchema},
		{"GET", "/metrics", access.Read, aboutEverything, a.showMetrics},

		{"GET", "/v1/jobs", access.Read, aboutJobs, a.listJobs},
		{"POST", "/v1/jobs", access.Submit, aboutJobs, a.postJob},
		{"DELETE", "/v1/jobs", access.Submit, aboutJobs, a.cancelJobs},
		{"POST", "/v1/jobs/batch", access.Submit, aboutJobs, a.postBatch},
		{"GET", "/v1/jobs/:key", access.Read, aboutJobs, a.getJob},
		{"PUT", "/v1/jobs/:key", access.Submit, aboutJobs, a.putJob},
		{"PATCH", "/v1/jobs/:key", access.Submit, aboutJobs, a.patchJob},
		{"DELETE", "/v1/jobs/:key", access.Submit, aboutJobs, a.cancelJob},
		{"GET", "/v1/jobs/:key/explain", access.Read, aboutJobs, a.explainJob},
		{"GET", "/v1/jobs/:key/history", access.Read, aboutJobs, a.getJobHistory},
		{"GET", "/v1/jobs/:key/preview", access.Read, aboutJobs, a.previewJob},
		{"POST", "/v1/jobs/:key/pause", access.Operate, aboutJobs, a.pauseJob},
		{"POST", "/v1/jobs/:key/resume", access.Operate, aboutJobs, a.resumeJob},
		{"POST", "/v1/jobs/:key/trigger", access.Operate, aboutJobs, a.triggerJob},
		{"POST", "/v1/jobs/:key/check-in", access.Submit, aboutJobs, a.checkIn},
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

		{"GET", "/v1/session", access.Read, aboutTenants, unkept(a.showSession)},
		{"POST", "/v1/session", access.Read, aboutTenants, unkept(a.signIn)},
		{"DELETE", "/v1/session", access.Read, aboutTenants, unkept(a.signOut)},

		{"GET", "/v1/keys", access.Administer, aboutTenants, unkept(a.listKeys)},
		{"POST", "/v1/keys", access.Administer, aboutTenants, unkept(a.createKey)},
		{"GET", "/v1/keys/:id", access.Administer, aboutTenants, unkept(a.getKey)},
		{"DELETE", "/v1/keys/:id", access.Administer, aboutTenants, unkept(a.revokeKey)},
		{"POST", "/v1/keys/:id/rotate", access.Administer, aboutTenants, unkept(a.rotateKey)},
		{"PUT", "/v1/keys/:id/limits", access.Administer, aboutTenants, unkept(a.putKeyLimits)},

		{"GET", "/v1/secrets", access.Read, aboutTenant, a.listSecrets},
		{"PUT", "/v1/secrets/:name", access.Operate, aboutTenant, a.putSecret},
		{"DELETE", "/v1/secrets/:name", access.Operate, aboutTenant, a.deleteSecret},
		{"GET", "/v1/signing-secrets", access.Read, aboutTenant, a.listSigningSecrets},
		{"POST", "/v1/signing-secrets", access.Operate, aboutTenant, unkept(a.postSigningSecret)},
		{"POST", "/v1/signing-secrets/:name/rotate", access.Operate, aboutTenant, unkept(a.rotateSigningSecret)},
		{"DELETE", "/v1/signing-secrets/:name", access.Operate, aboutTenant, a.deleteSigningSecret},

		{"GET", "/v1/status", access.Read, aboutWholeTenants, a.getStatus},
		{"GET", "/v1/backlog", access.Read, aboutWholeTenants, a.getBacklog},
		{"GET", "/v1/forecast", access.Read, aboutWholeTenants, a.getForecast},
		{"POST", "/v1/forecast", access.Read, aboutWholeTenants, a.postForecast},
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
	backlog *backlog.Reader
	facts   *facts.Reader
	tenants *tenants.Tenants
	past    *history.Reader
	plans   *forecast.Reader
	crowd   *forecast.Crowd
	anyone  access.Principal
	// wrong counts the requests with a wrong key by address, and keyless those without a key. They are separate, so that
	// clients without a key don't lock out valid keys of the same address.
	wrong, keyless *access.Tries
	sessions       *sessions.Sessions
}

// answer makes a gin handler that answers the errors of a handler as problems.
func (a *api) answer(handle func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := handle(c); err != nil {
			a.writeProblem(c, err)
		}
	}
}

// now returns the present time in whole milliseconds.
func (a *api) now() time.Time { return a.Now().UTC().Truncate(time.Millisecond) }

// tenantHeader names the request's tenant. Without it, the tenant is [job.DefaultTenant], or the only tenant of the
// key.
const tenantHeader = "Carillon-Tenant"

var (
	tenantNames = fmt.Sprintf("1 to %d letters (a to z, A to Z), digits, dots, underscores and hyphens",
		job.MaxTenantBytes)
	tenantRule = fmt.Sprintf("must be one tenant's name, %s; the default is %q, or the only tenant of the key",
		tenantNames, job.DefaultTenant)
)

// wakeTenant wakes the dispatcher for all lanes of a tenant.
func (a *api) wakeTenant(tenant string, now time.Time) {
	for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
		a.Wake(job.Lane{Tenant: tenant, Priority: p}, now)
	}
}

// stamp returns a new version, by the store's clock if it is known, and never ahead of that clock.
func (a *api) stamp() job.Revision {
	if theirs, known := a.Clock.Earliest(time.Now()); known {
		return job.NewRevision(theirs)
	}
	return job.NewRevision(a.now())
}

// inTime returns the context of a request's change, which ends when the change may no longer take effect. It also
// returns the span of the versions that are taken between the request's arrival and that end.
func (a *api) inTime(r *http.Request) (context.Context, context.CancelFunc, store.Span) {
	asked := arrival(r)
	return a.between(r.Context(), asked, asked.Add(store.Within))
}

// between is inTime for a change, or a part of one, with a given time of arrival and end.
func (a *api) between(ctx context.Context, asked, over time.Time) (context.Context, context.CancelFunc, store.Span) {
	ctx, cancel := context.WithDeadline(ctx, over)
	return ctx, cancel, a.Clock.Newer(asked, over)
}

// storeTime bounds the calls to the store that one request makes, or that each slice of a long one makes.
const storeTime = store.Within

// headAsGet answers HEAD like GET; the server leaves the body out.
type headAsGet struct {
	next http.Handler
}

func (h headAsGet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		get := *r // a copy: the server decides by its own request whether to send the body
		get.Method = http.MethodGet
		r = &get
	}
	h.next.ServeHTTP(w, r)
}

// noMethod answers an unsupported method of a path. The router has set Allow.
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
	return &statusError{http.StatusMethodNotAllowed, "this path supports " + strings.Join(allow, ", ")}
}
