package webhook

import (
	"net/url"
	"strconv"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// describeRequest sets the attributes of a request on an attempt's span, as OpenTelemetry's conventions say.
func describeRequest(span trace.Span, r *request) {
	if !span.IsRecording() {
		return
	}
	port, err := strconv.Atoi(r.url.Port())
	if err != nil { // there is none
		port = map[string]int{"http": 80, "https": 443}[r.url.Scheme]
	}
	span.SetAttributes(
		semconv.HTTPRequestMethodKey.String(r.method),
		semconv.ServerAddress(r.url.Hostname()),
		semconv.ServerPort(port),
		semconv.URLFull(withoutSecrets(r.url)),
	)
}

// withoutSecrets returns a URL with REDACTED in place of possible secrets: the user, the path and the query, by which
// many services know their callers.
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
