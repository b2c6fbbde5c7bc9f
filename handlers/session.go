package handlers

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/audit"
)

// sessionCookie is the name of the cookie with a session's secret.
const sessionCookie = "carillon_session"

// sessionView describes the caller in the form of the answer.
type sessionView struct {
	Authentication string              `json:"authentication"` // keys or none
	ID             string              `json:"id"`
	Role           access.Role         `json:"role"`
	Permissions    []access.Permission `json:"permissions"`
	Tenants        []string            `json:"tenants"`
	KeyPrefix      string              `json:"keyPrefix,omitzero"`
	ExpiresAt      string              `json:"expiresAt,omitzero"`
}

// resume returns the caller that signed in with a browser's cookie. The browser adds the cookie by itself, so the
// request must come from a page of this service.
func (a *api) resume(c *gin.Context, secret string) (*caller, error) {
	if err := refuseOtherPages(c.Request); err != nil {
		return nil, err
	}
	return a.recognize(c, a.sessions.Knows(secret), func(ctx context.Context) (*caller, error) {
		now := a.Now()
		session, err := a.sessions.Get(ctx, secret, now)
		if err != nil {
			return nil, err
		}
		principal, err := a.Auth.Authenticate(ctx, session.Credential, now)
		if err != nil {
			return nil, err
		}
		return &caller{
			Principal: principal, token: session.Credential, session: secret, sessionEnds: session.ExpiresAt,
		}, nil
	})
}

// refuseOtherPages refuses a request that carries a cookie and that no page of this service has made. A read may also
// come from no page, such as a typed address. Without TLS, browsers omit Sec-Fetch-Site; then changes need the Origin
// of this service.
func refuseOtherPages(r *http.Request) error {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case site == "same-origin", reads && (site == "" || site == "none"):
		return nil
	case site == "" && r.Header.Get("Origin") != "":
		return refuseOtherSites(r)
	default:
		return &statusError{http.StatusForbidden, "only a page of this service may use the cookie of a session; " +
			"other clients send a key, as " + credentialHeader + ": " + scheme + " KEY"}
	}
}

// signIn begins a session for the key or token of the request, and answers with its cookie. A session can't begin
// another one; otherwise a stolen session would never end.
func (a *api) signIn(c *gin.Context) error {
	if err := a.refuseBody(c); err != nil {
		return err
	}
	w := who(c)
	if a.Auth == nil {
		return a.showSession(c)
	}
	if w.session != "" {
		return &statusError{http.StatusForbidden,
			"a session begins with a key: send it as " + credentialHeader + ": " + scheme + " KEY"}
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	secret, session, err := a.sessions.Begin(ctx, w.token, w.ExpiresAt, a.now())
	if err != nil {
		return err
	}
	w.sessionEnds = session.ExpiresAt
	setSessionCookie(c, secret, 0)
	a.auditSession(c, http.StatusOK)
	return a.showSession(c)
}

// signOut ends the session of the request.
func (a *api) signOut(c *gin.Context) error {
	if w := who(c); w.session != "" {
		ctx, cancel, _ := a.inTime(c.Request)
		defer cancel()
		if err := a.sessions.End(ctx, w.session, a.now()); err != nil {
			return err
		}
		a.auditSession(c, http.StatusNoContent)
	}
	setSessionCookie(c, "", -1)
	writeNoBody(c, http.StatusNoContent)
	return nil
}

// setSessionCookie sets the session's cookie, which ends with the browser or after maxAge seconds. It has no path, so
// that browsers send it to the paths beside this one only: those of the API, also behind a proxy that adds a prefix.
// It is for TLS alone if the page was read over TLS; only the browser knows that behind a proxy.
func setSessionCookie(c *gin.Context, secret string, maxAge int) {
	http.SetCookie(c.Writer, &http.Cookie{ //nolint:gosec // a laptop has no TLS
		Name: sessionCookie, Value: secret, MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: c.Request.TLS != nil || strings.HasPrefix(c.GetHeader("Origin"), "https://"),
	})
}

// auditSession writes a line of the trail for a session that began or ended.
func (a *api) auditSession(c *gin.Context, status int) {
	if a.Audit == nil {
		return
	}
	entry := audit.Entry{}
	a.complete(&entry, c, aboutTenants, status)
	a.writeAudit(entry)
}

// ends returns the end of a caller's session or key, whichever is earlier; zero if there is none.
func (w *caller) ends() time.Time {
	if !w.sessionEnds.IsZero() && (w.ExpiresAt.IsZero() || w.sessionEnds.Before(w.ExpiresAt)) {
		return w.sessionEnds
	}
	return w.ExpiresAt
}

// showSession answers with the caller's permissions.
func (a *api) showSession(c *gin.Context) error {
	w := who(c)
	view := sessionView{
		Authentication: "none", ID: w.ID, Role: w.Role, Tenants: w.Scope.Tenants, KeyPrefix: w.Scope.KeyPrefix,
		ExpiresAt: instantText(w.ends()),
		Permissions: slices.DeleteFunc(
			[]access.Permission{access.Read, access.Submit, access.Operate, access.Administer},
			func(p access.Permission) bool { return !w.Role.May(p) }),
	}
	if a.Auth != nil {
		view.Authentication = "keys"
	}
	if view.Tenants == nil {
		view.Tenants = []string{}
	}
	return writeJSON(c, http.StatusOK, view)
}
