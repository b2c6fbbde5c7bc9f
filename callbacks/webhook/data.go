package webhook

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/idna"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// callback is the callback data of a job.
type callback struct {
	URL     string                    `json:"url" validate:"required"`
	Method  string                    `json:"method" validate:"omitempty,oneof=POST PUT PATCH"` // empty is POST
	Headers map[string]callbacks.Text `json:"headers"`
	Payload jsontext.Value            `json:"payload"` // nil if there is none
}

// Check implements [job.Checker]. newRequest and the transport accept all data that it lets pass. The methods do not
// include GET and DELETE: receivers need not look at the body of either, so the payload would be lost.
func (c callback) Check(invalid *job.Invalid) {
	job.CheckTags(c, invalid)
	var target *url.URL
	if c.URL != "" {
		var problem string
		if target, problem = parseURL(c.URL); problem != "" {
			invalid.Add("/url", problem)
		}
	}
	checkHeaders(c.Headers, target, invalid)
}

// parseURL reads the URL to call, or returns its fault. It never quotes the URL, which may contain secrets.
func parseURL(s string) (u *url.URL, problem string) {
	const absolute = "must be an absolute URL such as https://example.com/hook"
	u, err := url.Parse(s)
	if err != nil {
		return nil, absolute
	}
	switch host := u.Hostname(); {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, "must begin with http:// or https://"
	case u.Opaque != "" || host == "":
		return nil, absolute + "; the host is missing"
	case u.Fragment != "" || strings.Contains(s, "#"):
		return nil, "must not have a fragment (#...): receivers never see it"
	case u.RawPath != "" && u.RawPath != u.EscapedPath(), strings.ContainsFunc(u.RawQuery, unfit):
		return nil, "must have its path and query percent-encoded: no spaces, nothing beyond ASCII" // so it is sent as it is
	case !validPort(u):
		return nil, "must have a port from 1 to 65535"
	}
	// The value that the transport writes as the request's Host.
	if host, err := httpguts.PunycodeHostPort(u.Host); err != nil || !httpguts.ValidHostHeader(host) {
		return nil, "must have a valid host name"
	}
	return u, ""
}

// target returns the host of a URL that was accepted, in ASCII as the transport has it looked up, and its port.
func target(u *url.URL) (host string, port uint16) {
	host = u.Hostname()
	if strings.ContainsFunc(host, unfit) { // letters and digits of other forms may stand for those of an address
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			host = ascii
		}
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return host, uint16(n)
	}
	return host, map[string]uint16{"http": 80, "https": 443}[u.Scheme]
}

func unfit(r rune) bool { return r <= ' ' || r > '~' }

func validPort(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// checkHeaders notes the headers that can't be sent. The target is nil if the URL is wrong.
func checkHeaders(headers map[string]callbacks.Text, target *url.URL, invalid *job.Invalid) {
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	seen := make(map[string]string, len(names))
	for _, name := range names {
		pointer, canonical := job.Pointer("headers", name), http.CanonicalHeaderKey(name)
		switch first, twice := seen[canonical]; {
		case !httpguts.ValidHeaderFieldName(name):
			invalid.Add(pointer, "is not a valid header name; it must be letters, digits and any of !#$%&'*+-.^_`|~")
		case reserved(canonical):
			invalid.Add(pointer, "is set by Carillon or by the connection; leave it out")
		case twice:
			invalid.Add(pointer, fmt.Sprintf("is the same header as %s, since case does not matter; give it once", first))
		case canonical == "Authorization" && target != nil && target.User != nil:
			invalid.Add(pointer, "is already given by the user in the url; give one of them")
		case !validValue(headers[name].Literal()):
			invalid.Add(pointer, "must be printable ASCII that neither begins nor ends with a space")
		default:
			headers[name].Check(pointer, invalid)
		}
		seen[canonical] = name
	}
}

// reserved reports whether clients must not set a header: Carillon's own, those of the framework it follows
// (https://www.standardwebhooks.com), and those that belong to the connection and not to the request.
func reserved(canonical string) bool {
	switch canonical {
	case "Host", "Content-Length", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect",
		"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Http2-Settings":
		return true
	}
	return strings.HasPrefix(canonical, "Carillon-") || strings.HasPrefix(canonical, "Webhook-")
}

// validValue is stricter than HTTP: bytes beyond ASCII have no agreed meaning, and spaces at the ends are lost on the
// way.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c > '~' {
			return false
		}
	}
	return strings.Trim(s, " \t") == s
}
