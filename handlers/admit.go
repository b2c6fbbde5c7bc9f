package handlers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// caller is the principal that makes a request.
type caller struct {
	access.Principal
	// token is the caller's credential; empty if the service asks for none.
	token string
	// session is the secret of the browser's session that the credential came from; empty if the request carried it.
	session string
	// sessionEnds is the end of that session. A key that its caller makes may outlive it, unlike the caller's own key.
	sessionEnds time.Time
	// tenant is the tenant that the request acts for; empty if it concerns none or several.
	tenant string
	// request is the request's id.
	request string
}

// key returns the key of the caller's limits.
func (w *caller) key() limits.Key {
	return limits.Key{ID: w.ID, Prefix: w.Scope.KeyPrefix, Own: w.Limits}
}

// callerKey is the key of a request's caller in its context.
type callerKey struct{}

// callerOf returns the caller of an admitted request from its context; nil on a route that is open to all.
func callerOf(ctx context.Context) *caller {
	who, _ := ctx.Value(callerKey{}).(*caller)
	return who
}

// who returns the caller of an admitted request; nil on a route that is open to all.
func who(c *gin.Context) *caller { return callerOf(c.Request.Context()) }

// admit checks that the caller may make a request to the route, and stores the caller in the context. Permissions are
// checked here only; [within] limits the data that a caller can see and change in the store.
func (a *api) admit(r route) gin.HandlerFunc {
	able := rolesThatMay(r.needs)
	return func(c *gin.Context) {
		caller, err := a.identify(c)
		if err == nil {
			caller.request = requestID(c.Request)
			c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), callerKey{}, caller))
			err = caller.enter(c.Request, r, able)
		}
		if err != nil {
			a.writeProblem(c, err)
			c.Abort()
		}
	}
}

// rolesThatMay returns the roles that have a permission.
func rolesThatMay(p access.Permission) []access.Role {
	return slices.DeleteFunc(access.Roles(), func(r access.Role) bool { return !r.May(p) })
}

// enter refuses a caller without the permission, or sets the tenant of the request.
func (w *caller) enter(r *http.Request, asked route, able []access.Role) (err error) {
	switch {
	case !slices.Contains(able, w.Role):
		return &statusError{http.StatusForbidden, fmt.Sprintf("this request needs the permission %s, which the "+
			"roles %s have; your role is %s", asked.needs, strings.Join(texts(able), ", "), w.Role)}
	case asked.about.wholly() && w.Scope.KeyPrefix != "":
		return &statusError{http.StatusForbidden, fmt.Sprintf("this request is about whole tenants. It "+
			"needs a key without a prefix; your key is for jobs whose keys begin with %q", w.Scope.KeyPrefix)}
	case asked.about == aboutEverything && !w.Scope.All():
		return &statusError{http.StatusForbidden, `this request is about all tenants; it needs a key for the tenants "*"`}
	}
	if err := refuseOtherSites(r); err != nil {
		return err
	}
	w.tenant, err = asked.about.tenantOf(r, w.Scope)
	return err
}

func texts(roles []access.Role) []string {
	all := make([]string, len(roles))
	for i, r := range roles {
		all[i] = string(r)
	}
	return all
}

// Headers that ask for a credential and carry it (RFC 9110, section 11; RFC 6750).
const (
	credentialHeader = "Authorization"
	challengeHeader  = "WWW-Authenticate"
	scheme           = "Bearer"
	challenge        = scheme + ` realm="carillon"`
)

// identify returns the principal of a request; if the service asks for no credentials, that is access.Anyone.
func (a *api) identify(c *gin.Context) (*caller, error) {
	if err := refuseLookalikes(c.Request.Header); err != nil {
		return nil, err
	}
	if from := InsideOf(c.Request.Context()); from != nil {
		return &caller{Principal: from.Principal}, nil
	}
	if a.Auth == nil {
		if a.LocalOnly && !isLocal(c.Request.Host) {
			return nil, errNotLocal
		}
		return &caller{Principal: a.anyone}, nil
	}
	shown := c.Request.Header[credentialHeader]
	if len(shown) == 0 {
		if cookie, err := c.Request.Cookie(sessionCookie); err == nil {
			return a.resume(c, cookie.Value)
		}
	}
	if len(shown) != 1 {
		return nil, a.unidentified(c, len(shown))
	}
	return a.authenticate(c, shown[0])
}

// unidentified refuses a request without a credential, or with several. Each address may make some of them.
func (a *api) unidentified(c *gin.Context, shown int) error {
	from, now := c.Request.RemoteAddr, a.Now()
	if wait := a.keyless.Wait(from, now); wait > 0 {
		return tooMany(c, wait, "requests without a key")
	}
	a.keyless.Failed(from, now)
	if shown == 0 {
		c.Header(challengeHeader, challenge)
		return &statusError{http.StatusUnauthorized,
			"this request needs a key: send it in a header, as " + credentialHeader + ": " + scheme + " KEY"}
	}
	c.Header(challengeHeader, challenge+`, error="invalid_request"`)
	return &statusError{http.StatusUnauthorized, "there are several " + credentialHeader + " headers; send one"}
}

// tooMany refuses requests of a kind that an address has made too many of.
func tooMany(c *gin.Context, wait time.Duration, what string) error {
	c.Header("Retry-After", strconv.Itoa(seconds(wait)))
	return &statusError{http.StatusTooManyRequests,
		"too many " + what + " came from this address; try again after the time in Retry-After"}
}

var errNotLocal = &statusError{http.StatusForbidden, "no key is needed here, so only requests to localhost or to an " +
	"IP address are answered: a page of the web can have any other name stand for this machine. Use http://127.0.0.1, " +
	"or have the proxy send such a Host; or start the service with --auth=keys, or with " +
	"--insecure-no-auth-beyond-loopback"}

// Local answers only requests to localhost or to an IP address, as [Config.LocalOnly] does for the API.
func Local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "only requests to localhost or to an IP address are answered here", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocal reports whether a request's host is localhost or an IP address. The owner of any other name can resolve it to
// any address. Browsers always send a host.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// authenticate returns the caller that shows a credential.
func (a *api) authenticate(c *gin.Context, credential string) (*caller, error) {
	token, err := bearer(credential)
	return a.recognize(c, err == nil && a.Auth.Knows(token, a.Now()), func(ctx context.Context) (*caller, error) {
		if err != nil {
			return nil, err
		}
		principal, err := a.Auth.Authenticate(ctx, token, a.Now())
		return &caller{Principal: principal, token: token}, err
	})
}

// recognize returns the caller that a look-up of its credential finds. If an address has sent too many wrong
// credentials, only those that were valid before, and so are known, are looked up.
func (a *api) recognize(
	c *gin.Context, known bool, lookUp func(context.Context) (*caller, error),
) (*caller, error) {
	from, now := c.Request.RemoteAddr, a.Now()
	if wait := a.wrong.Wait(from, now); wait > 0 && !known {
		return nil, tooMany(c, wait, "invalid keys")
	}
	found, err := lookUp(c.Request.Context())
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		a.wrong.Failed(from, now)
		c.Header(challengeHeader, challenge+`, error="invalid_token"`)
		return nil, err
	case errors.Is(err, store.ErrUnavailable): // nothing was done yet
		return nil, fmt.Errorf("%w: the key could not be checked: %w", store.ErrNotDone, err)
	case err != nil:
		return nil, err
	}
	return found, nil
}

// maxToken bounds the bytes of a credential. The tokens of some issuers have some kilobytes.
const maxToken = 16 << 10

// bearer reads a credential of the form "Bearer TOKEN".
func bearer(credential string) (string, error) {
	named, token, found := strings.Cut(credential, " ")
	token = strings.TrimLeft(token, " ")
	if !found || !strings.EqualFold(named, scheme) || len(token) > maxToken || !isToken68(token) {
		return "", access.ErrUnauthenticated
	}
	return token, nil
}

// isToken68 reports whether a text has the form of a bearer token (RFC 9110, section 11.2). A list of tokens has not.
func isToken68(text string) bool {
	text = strings.TrimRight(text, "=")
	for i := range len(text) {
		switch b := text[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case strings.IndexByte("-._~+/", b) >= 0:
		default:
			return false
		}
	}
	return text != ""
}

// refuseLookalikes refuses headers that a proxy may mistake for the credential or the tenant. The proxy and this
// service would then read different requests.
func refuseLookalikes(header http.Header) error {
	for name := range header {
		if !strings.Contains(name, "_") {
			continue
		}
		switch meant := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")); meant {
		case tenantHeader, credentialHeader:
			return &statusError{http.StatusBadRequest, fmt.Sprintf("the header %s is not supported; use %s", name, meant)}
		}
	}
	return nil
}

// refuseOtherSites refuses a change that a page of another site makes through a browser. Without API keys, the
// browser's place in the network would be enough to get access.
func refuseOtherSites(r *http.Request) error {
	var sites http.CrossOriginProtection // without exceptions
	if sites.Check(r) != nil {
		return &statusError{http.StatusForbidden, "a page of another site may not make changes"}
	}
	return nil
}

// readmit authenticates the caller again, between the parts of a long request. A key that was revoked meanwhile ends
// the request.
func (a *api) readmit(ctx context.Context) error {
	w := callerOf(ctx)
	if a.Auth == nil || w == nil || InsideOf(ctx) != nil {
		return nil
	}
	_, err := a.Auth.Authenticate(ctx, w.token, a.Now())
	return err
}

// tenantOf returns the tenant of a request.
func (s subject) tenantOf(r *http.Request, scope access.Scope) (string, error) {
	named := r.Header[tenantHeader]
	switch s {
	case aboutItself, aboutEverything:
		return "", nil
	case aboutTenants, aboutWholeTenants:
		// A proxy that sets the tenant for its clients relies on this to keep them apart.
		return "", refuseHeaders(r, tenantHeader)
	case aboutJobs, aboutTenant:
	}
	switch {
	case len(named) > 1, len(named) == 1 && !job.ValidTenant(named[0]):
		return "", &parameterError{tenantHeader, tenantRule}
	case len(named) == 1 && !scope.HasTenant(named[0]):
		return "", &statusError{http.StatusForbidden, "your key is not for the tenant that " + tenantHeader + " names"}
	case len(named) == 1:
		return named[0], nil
	case scope.HasTenant(job.DefaultTenant):
		return job.DefaultTenant, nil
	case len(scope.Tenants) == 1:
		return scope.Tenants[0], nil
	case len(scope.Tenants) == 0: // such as an issuer's token that names none
		return "", &statusError{http.StatusForbidden, "your token is not for any tenant"}
	default:
		return "", &parameterError{tenantHeader,
			"is required, since your key is for several tenants: name one of " + strings.Join(scope.Tenants, ", ")}
	}
}
