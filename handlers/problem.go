package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// problem is an RFC 9457 problem document. Its type is about:blank, so its title is the status in words.
type problem struct {
	Type   string       `json:"type"`
	Title  string       `json:"title"`
	Status int          `json:"status"`
	Detail string       `json:"detail"`
	Errors []fieldError `json:"errors,omitempty"`
	Quota  *quotaView   `json:"quota,omitzero"`
	// RequestID identifies the request in the log and the audit trail.
	RequestID string `json:"requestId,omitzero"`
}

// fieldError describes the fault of one field of the body, named by a JSON Pointer, or of one parameter of the path or
// the query or a header, named by its name.
type fieldError struct {
	Pointer   *string `json:"pointer,omitzero"`   // empty for the body itself
	Parameter *string `json:"parameter,omitzero"` // empty for an unnamed one
	Message   string  `json:"message"`
}

// statusError is an error that the client can correct, with its status.
type statusError struct {
	status int
	detail string
}

func (e *statusError) Error() string { return e.detail }

// parameterError is an invalid parameter of the path or the query, or an invalid header.
type parameterError struct {
	name    string
	message string
}

func (e *parameterError) Error() string { return e.name + ": " + e.message }

// retryAfter is the pause that a client is asked for while the store is down.
const retryAfter = 5 * time.Second

// problemOf returns the problem for an error; errors get their statuses here only. An error that is not listed here is
// a fault of the service: hidden is true, and its text goes to the log, not to the client.
func problemOf(err error) (p problem, hidden bool) {
	if e, ok := errors.AsType[*statusError](err); ok {
		return newProblem(e.status, e.detail), false
	}
	if e, ok := errors.AsType[*parameterError](err); ok {
		p := newProblem(http.StatusUnprocessableEntity, "a parameter is invalid; see errors")
		p.Errors = []fieldError{{Parameter: &e.name, Message: e.message}}
		return p, false
	}
	if e, ok := errors.AsType[*job.Malformed](err); ok {
		return newProblem(http.StatusBadRequest, e.Reason), false
	}
	if e, ok := errors.AsType[*job.Invalid](err); ok {
		p := newProblem(http.StatusUnprocessableEntity, "the request is invalid; see errors")
		for _, f := range e.Fields {
			p.Errors = append(p.Errors, fieldError{Pointer: &f.Pointer, Message: f.Message})
		}
		return p, false
	}
	if e, ok := errors.AsType[*limits.Exceeded](err); ok {
		p := newProblem(http.StatusForbidden, e.Error())
		p.Quota = &quotaView{e.Name, e.Limit, e.Present, e.Wanted}
		return p, false
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("at most %d bytes are allowed (--max-body)", e.Limit)), false
	}
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		return newProblem(http.StatusUnauthorized,
			"the key or token is not valid: it is misspelled or unknown, or it has expired or was revoked"), false
	case errors.Is(err, store.ErrNotFound):
		return newProblem(http.StatusNotFound, "there is no job with this key"), false
	case errors.Is(err, store.ErrPrecondition):
		return newProblem(http.StatusPreconditionFailed,
			"the condition in If-Match or If-None-Match is not met; nothing has changed"), false
	case errors.Is(err, store.ErrSuperseded):
		return newProblem(http.StatusConflict,
			"a later request has changed the job; this request has changed nothing. "+
				"Read the job, and send this request again if it is still needed"), false
	case errors.Is(err, store.ErrTooLarge):
		return newProblem(http.StatusRequestEntityTooLarge,
			"the job is larger than the store can keep; nothing has changed. "+
				"Split it into several jobs, with fewer instants, steps or subscribers each, "+
				"or have its callback refer to large data instead of containing it"), false
	case errors.Is(err, store.ErrNotDone):
		return newProblem(http.StatusServiceUnavailable,
			"the store is unavailable or overloaded; nothing was changed, so try again"), true
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable,
			"the store is unavailable or overloaded. The change may have been made; "+
				"if not, it will not be made later. Read the job, or try again"), true
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, "the body did not arrive in time"), false
	default:
		return newProblem(http.StatusInternalServerError, "the service has failed; its log has the cause"), true
	}
}

func newProblem(status int, detail string) problem {
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// writeProblem answers a request with its error.
func (a *api) writeProblem(c *gin.Context, err error) {
	p := a.report(c.Request, err)
	if p.Status == http.StatusServiceUnavailable {
		c.Header("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	}
	writeAs(c, p.Status, "application/problem+json", mustEncode(p))
}

// report turns an error into a problem, and logs a hidden error.
func (a *api) report(r *http.Request, err error) problem {
	p, hidden := problemOf(err)
	p.RequestID = requestID(r)
	if hidden && r.Context().Err() == nil { // else it failed because the client disconnected
		level := a.Logger.Error
		if p.Status == http.StatusServiceUnavailable {
			level = a.Logger.Warn
		}
		level("request failed", "method", r.Method, "path", shownPath(r), "status", p.Status, "error", err,
			"request", requestID(r))
	}
	return p
}

// recoverPanic answers a request whose handler panics, so that the panic affects no other request.
func (a *api) recoverPanic(c *gin.Context) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		if fault == http.ErrAbortHandler { //nolint:errorlint // net/http panics with this very value
			panic(fault)
		}
		a.Logger.Error("panic", "method", c.Request.Method, "path", shownPath(c.Request),
			"panic", fault, "stack", string(debug.Stack()), "request", requestID(c.Request))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // a part was sent: break the connection, to show that it is not all
		}
		p := newProblem(http.StatusInternalServerError, "the service has failed; its log has the cause")
		p.RequestID = requestID(c.Request)
		writeAs(c, p.Status, "application/problem+json", mustEncode(p))
	}()
	c.Next()
}

// shownPath returns the path of a request for logs and traces, with API keys masked.
func shownPath(r *http.Request) string { return access.MaskTokens(r.URL.EscapedPath()) }
