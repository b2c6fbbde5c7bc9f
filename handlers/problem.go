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
	// RequestID is the request's name in the log and the audit trail.
	RequestID string `json:"requestId,omitzero"`
}

// fieldError describes the fault of one field of the body, named by a JSON Pointer, or of one parameter of the path or
// the query or a header, named by its name.
type fieldError struct {
	Pointer   *string `json:"pointer,omitzero"`   // empty for the body itself
	Parameter *string `json:"parameter,omitzero"` // empty for one that has no name
	Message   string  `json:"message"`
}

// statusError is an error that is the client's to mend, with the status that says so.
type statusError struct {
	status int
	detail string
}

func (e *statusError) Error() string { return e.detail }

// parameterError is a parameter of the path or the query, or a header, that can't be accepted.
type parameterError struct {
	name    string
	message string
}

func (e *parameterError) Error() string { return e.name + ": " + e.message }

// retryAfter is how long a client is asked to wait while the store is down.
const retryAfter = 5 * time.Second

// problemOf is the one place where errors become statuses. An error that is not listed here is a fault of the service:
// its text is for the log, not for the client, and hidden tells so.
func problemOf(err error) (p problem, hidden bool) {
	if e, ok := errors.AsType[*statusError](err); ok {
		return newProblem(e.status, e.detail), false
	}
	if e, ok := errors.AsType[*parameterError](err); ok {
		p := newProblem(http.StatusUnprocessableEntity, "a parameter can't be accepted; see errors")
		p.Errors = []fieldError{{Parameter: &e.name, Message: e.message}}
		return p, false
	}
	if e, ok := errors.AsType[*job.Malformed](err); ok {
		return newProblem(http.StatusBadRequest, e.Reason), false
	}
	if e, ok := errors.AsType[*job.Invalid](err); ok {
		p := newProblem(http.StatusUnprocessableEntity, "what was sent can't be accepted; see errors")
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
			"the job is not as If-Match or If-None-Match says; nothing has changed"), false
	case errors.Is(err, store.ErrSuperseded):
		return newProblem(http.StatusConflict,
			"the job was changed by another request that came after this one; nothing was done. "+
				"Read the job, and send this again if it is still wanted"), false
	case errors.Is(err, store.ErrTooLarge):
		return newProblem(http.StatusRequestEntityTooLarge,
			"the job is larger than the store can keep; nothing has changed. "+
				"Make it several jobs, with fewer instants, steps or subscribers each, "+
				"or have its callback refer to large data instead of holding them"), false
	case errors.Is(err, store.ErrNotDone):
		return newProblem(http.StatusServiceUnavailable,
			"the store can't be reached or can't take this now; nothing was changed, so ask again"), true
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable,
			"the store can't be reached or can't take this now. A change that was asked for "+
				"was made or not, and will not be made any more: read the job, or ask again"), true
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, "the body did not arrive in time"), false
	default:
		return newProblem(http.StatusInternalServerError, "something is wrong on this side; the log tells more"), true
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
	if hidden && r.Context().Err() == nil { // else the client has gone, and that is why it failed
		level := a.Logger.Error
		if p.Status == http.StatusServiceUnavailable {
			level = a.Logger.Warn
		}
		level("request failed", "method", r.Method, "path", r.URL.EscapedPath(), "status", p.Status, "error", err,
			"request", requestID(r))
	}
	return p
}

// recoverPanic answers a request whose handler panics, so that a fault in one spoils no other.
func (a *api) recoverPanic(c *gin.Context) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		if fault == http.ErrAbortHandler { //nolint:errorlint // it is panicked with as it is
			panic(fault)
		}
		a.Logger.Error("panic", "method", c.Request.Method, "path", c.Request.URL.EscapedPath(),
			"panic", fault, "stack", string(debug.Stack()), "request", requestID(c.Request))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // a part was sent: break the connection, so that it is not taken for the whole
		}
		p := newProblem(http.StatusInternalServerError, "something is wrong on this side; the log tells more")
		p.RequestID = requestID(c.Request)
		writeAs(c, p.Status, "application/problem+json", mustEncode(p))
	}()
	c.Next()
}
