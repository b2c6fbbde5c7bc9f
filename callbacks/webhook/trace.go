package webhook

import (
	"net/http"
	"net/url"
	"strconv"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// describeRequest notes on an attempt's span what OpenTelemetry's conventions say of a request.
func describeRequest(span trace.Span, req *http.Request) {
	if !span.IsRecording() {
		return
	}
	port, err := strconv.Atoi(req.URL.Port())
	if err != nil { // there is none
		port = map[string]int{"http": 80, "https": 443}[req.URL.Scheme]
	}
	span.SetAttributes(
		semconv.HTTPRequestMethodKey.String(req.Method),
		semconv.ServerAddress(req.URL.Hostname()),
		semconv.ServerPort(port),
		semconv.URLFull(withoutSecrets(req.URL)),
	)
}

// withoutSecrets is a URL with REDACTED in place of all that may be a secret: the user, and, since many services know
// their callers by it, the path and the query.
func withoutSecrets(u *url.URL) string {
	const redacted = "REDACTED"
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/"}
	if u.User != nil {
		shown.User = url.UserPassword(redacted, redacted)
	}
	if u.Path != "" && u.Path != "/" {
		shown.Path += redacted
	}
	if u.RawQuery != "" {
		shown.RawQuery = redacted
	}
	return shown.String()
}
