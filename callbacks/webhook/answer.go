package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// mostRead is the maximum number of bytes that are read of an error's body.
const mostRead = 1024

// failure makes an error of an answer that is not a success. It quotes the answer if that may be shown, without the
// request's secrets.
func failure(r *request, resp *http.Response, quotable bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s answered %d", r.method, r.url.Host, resp.StatusCode)
	if text := http.StatusText(resp.StatusCode); text != "" {
		b.WriteString(" " + text)
	}
	if isRedirect(resp.StatusCode) {
		b.WriteString(", and redirects are not followed")
	}
	if quotable {
		// Enough for the excerpt; if it can't be read, the error does without.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, mostRead))
		hidden := secrets(r)
		if text := excerpt(body, hidden, runs(slices.Concat(r.secrets, encoded(r.secrets)))); text != "" {
			b.WriteString(": " + text)
		}
	}
	err := &refusal{b.String(), resp.StatusCode}
	if permanent(resp.StatusCode) {
		return callbacks.Permanent(err)
	}
	return &callbacks.Failure{Err: err, After: retryAfter(resp.Header, time.Now()), Blame: blame(resp.StatusCode)}
}

// blame returns the extent of a status: a receiver may fail or be overloaded on one path only; any other refusal
// concerns this request.
func blame(status int) callbacks.Blame {
	if status >= 500 || status == http.StatusTooManyRequests {
		return callbacks.BlamePart
	}
	return callbacks.BlameDelivery
}

// refusal is the error of an answer that is not a success.
type refusal struct {
	text   string
	status int
}

func (r *refusal) Error() string { return r.text }

// ErrorType returns the error's name in traces: the status, by OpenTelemetry's conventions.
func (r *refusal) ErrorType() string { return strconv.Itoa(r.status) }

// Status returns the status of the answer, see [callbacks.StatusOf].
func (r *refusal) Status() int { return r.status }

func isRedirect(status int) bool { return 300 <= status && status <= 399 }

// permanent reports whether a status means that the same request can never succeed. All others may be temporary: also
// 404, which a receiver answers while it is being deployed, and 401, which new credentials may fix.
func permanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusGone, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return isRedirect(status)
}

// maxRetryAfter bounds the pause that a receiver may ask for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the pause that the receiver asks for, in seconds or as a date; zero if it asks for none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if value == "" {
		return 0
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	// Digits only, of any number: an overflow is more than the bound anyhow.
	if strings.Trim(value, "0123456789") != "" {
		return 0
	}
	seconds, err := strconv.ParseUint(value, 10, 32)
	if err != nil || seconds > uint64(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
	return time.Duration(seconds) * time.Second
}

// excerpt returns the beginning of an error's body, fit for one line of a log. Receivers like to quote the request that
// they refuse, so its secrets are masked, one group of them after the other.
func excerpt(body []byte, secrets ...[]string) string {
	const most = 200 // characters
	text := string(body)
	for _, hidden := range secrets {
		for _, secret := range hidden {
			text = strings.ReplaceAll(text, secret, "***")
		}
		if len(body) == mostRead {
			text = withoutBeginning(text, hidden)
		}
	}
	printable := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == utf8.RuneError, !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	line := []rune(strings.Join(strings.Fields(printable), " "))
	return string(line[:min(len(line), most)])
}

// withoutBeginning removes a cut-off secret at the end of a text: the longest end that is the beginning of a secret.
func withoutBeginning(text string, secrets []string) string {
	longest := 0
	for _, secret := range secrets {
		for n := min(len(secret), len(text)); n > longest; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				longest = n
			}
		}
	}
	return text[:len(text)-longest]
}

// runs returns the runs of letters and digits in secrets. A receiver may escape the other characters, in one of many
// ways. Short runs are left out, as in [secrets].
func runs(named []string) (all []string) {
	for _, v := range named {
		for run := range strings.FieldsFuncSeq(v, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			if len(run) >= 6 {
				all = append(all, run)
			}
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// encoded returns the texts by which values show in base64 and in hexadecimal digits: a receiver may quote a delivery
// in such a form, alone or within other text. The base64 of a value depends on its offset in the whole text, modulo 3,
// and its first and last digits depend on the adjacent text.
func encoded(values []string) (all []string) {
	for _, v := range values {
		if len(v) < 6 {
			continue
		}
		all = append(all, base64.RawStdEncoding.EncodeToString([]byte(v)), base64.RawURLEncoding.EncodeToString([]byte(v)))
		for place := range 3 {
			whole := base64.RawStdEncoding.EncodeToString(append(make([]byte, place), v...))
			first, end := (place*8+5)/6, (place+len(v))*8/6
			own := whole[first:end]
			all = append(all, own, strings.NewReplacer("+", "-", "/", "_").Replace(own), url.QueryEscape(own))
		}
		digits := hex.EncodeToString([]byte(v))
		all = append(all, digits, strings.ToUpper(digits))
	}
	return all
}

// secrets returns the parts of a request that may be secret, in the forms in which a receiver may quote them, the
// longest first. Short ones are left out, but for named secrets: masking them would garble the text more than it hides.
func secrets(r *request) []string {
	var all []string
	for _, v := range r.secrets {
		all = append(all, v, url.QueryEscape(v))
	}
	all = append(all, encoded(r.secrets)...)
	add := func(values ...string) {
		for _, v := range values {
			if len(v) >= 6 {
				all = append(all, v, url.QueryEscape(v))
				all = append(all, encoded([]string{v})...)
			}
		}
	}
	add(r.url.RawQuery)
	for _, values := range r.url.Query() {
		add(values...)
	}
	if user := r.url.User; user != nil {
		password, _ := user.Password()
		add(password, user.Username()) // some services take a key as the name
	}
	for _, f := range r.fields { // with the Authorization of the URL's user
		if shownHeader(f.name) {
			continue
		}
		scheme, credentials, _ := strings.Cut(f.value, " ")
		add(f.value, credentials)
		if plain, err := base64.StdEncoding.DecodeString(credentials); err == nil && strings.EqualFold(scheme, "Basic") {
			_, password, _ := strings.Cut(string(plain), ":")
			add(string(plain), password)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// shownHeader reports whether a header contains no secret: Carillon's own headers, and those that describe the request.
// Any other may be a credential.
func shownHeader(canonical string) bool {
	switch canonical {
	case "Content-Type", "User-Agent", "Traceparent", "Tracestate", "Webhook-Id", "Webhook-Timestamp":
		return true
	}
	return strings.HasPrefix(canonical, "Carillon-") || strings.HasPrefix(canonical, "Ce-")
}
