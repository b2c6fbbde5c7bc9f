package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Errors of the service by their kind, for [errors.Is].
var (
	ErrBadRequest         = errors.New("malformed request")           // 400
	ErrUnauthorized       = errors.New("no valid key")                // 401
	ErrForbidden          = errors.New("not permitted")               // 403
	ErrNotFound           = errors.New("not found")                   // 404
	ErrConflict           = errors.New("overtaken by a later change") // 409
	ErrPreconditionFailed = errors.New("condition not met")           // 412
	ErrTooLarge           = errors.New("too large")                   // 413
	ErrInvalid            = errors.New("invalid")                     // 422
	ErrTooManyRequests    = errors.New("too many requests")           // 429
	ErrUnavailable        = errors.New("unavailable")                 // 502, 503, 504
)

var kinds = map[int]error{
	http.StatusBadRequest: ErrBadRequest, http.StatusUnauthorized: ErrUnauthorized, http.StatusForbidden: ErrForbidden,
	http.StatusNotFound: ErrNotFound, http.StatusConflict: ErrConflict,
	http.StatusPreconditionFailed:    ErrPreconditionFailed,
	http.StatusRequestEntityTooLarge: ErrTooLarge, http.StatusUnprocessableEntity: ErrInvalid,
	http.StatusTooManyRequests: ErrTooManyRequests, http.StatusBadGateway: ErrUnavailable,
	http.StatusServiceUnavailable: ErrUnavailable, http.StatusGatewayTimeout: ErrUnavailable,
}

// Error is a refused request: the problem document (RFC 9457) of its answer.
type Error struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Title is the status in words, and Detail the reason.
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// Fields names each field or parameter at fault, if the status is 422.
	Fields []FieldError `json:"errors,omitempty"`
	// Quota is the quota that has no room for a submission, if that is the reason.
	Quota *Quota `json:"quota,omitempty"`
	// RequestID names the request in the service's log and audit trail.
	RequestID string `json:"requestId,omitempty"`
	// RetryAfter is the pause that the service asks for; 0 if it names none.
	RetryAfter time.Duration `json:"-"`
	// MayHaveHappened is true if the answer of an earlier attempt was lost. A 412 may then mean that this attempt took
	// effect: read the job and compare.
	MayHaveHappened bool `json:"-"`
}

// FieldError is the error of one field of the body or of one parameter.
type FieldError struct {
	// Pointer is a JSON Pointer to the field; Parameter is the name of a parameter. One of them is empty.
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	// Message describes the valid values.
	Message string `json:"message"`
}

// Quota is a quota that has no room for a submission.
type Quota struct {
	Name    string `json:"name"`
	Limit   int    `json:"limit"`
	Present int    `json:"present"`
	Wanted  int    `json:"wanted"`
}

// Error implements error: the detail, and the fields at fault.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", e.Status, e.Title)
	if e.Detail != "" && len(e.Fields) == 0 {
		b.WriteString(": " + e.Detail)
	}
	for i, f := range e.Fields {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		if at := f.Pointer + f.Parameter; at != "" {
			b.WriteString(at + " ")
		}
		b.WriteString(f.Message)
	}
	return b.String()
}

// Is makes the error one of its kind.
func (e *Error) Is(target error) bool { return kinds[e.Status] == target && target != nil }

// UnknownError is the error of a request that may have taken effect, and was not sent again because it might then take
// effect twice. It wraps the reason.
type UnknownError struct{ Err error }

// Error implements error.
func (e *UnknownError) Error() string { return "the request may have taken effect: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *UnknownError) Unwrap() error { return e.Err }

// OutcomeUnknown reports whether a request that failed with this error may have taken effect.
func OutcomeUnknown(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := errors.AsType[*UnknownError](err); ok {
		return true
	}
	if e, ok := errors.AsType[*Error](err); ok && e.MayHaveHappened {
		return true
	}
	return judge(err) == mayHaveHappened
}

func markUnknown(err error) {
	if e, ok := errors.AsType[*Error](err); ok {
		e.MayHaveHappened = true
	}
}

// problem reads the error of an answer. If that is no problem document, as from a proxy, the error has only its status.
func problem(res *http.Response, body []byte) *Error {
	e := &Error{}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(body, e)
	}
	e.Status = res.StatusCode
	if e.Title == "" {
		e.Title = http.StatusText(e.Status)
	}
	if e.RequestID == "" {
		e.RequestID = res.Header.Get("X-Request-Id")
	}
	e.RetryAfter = retryAfter(res.Header)
	return e
}
