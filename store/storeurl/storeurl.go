// Package storeurl parses the URLs of stores. It is the only place that decides which parts of them may be shown: logs,
// errors and exports get no password and no option that may be a secret.
//
// Some store URLs can't be parsed by net/url, because they have several hosts.
package storeurl

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// URL is a parsed store URL. Printing, logging and encoding it all give the text of [URL.String].
type URL struct {
	scheme         string
	user, password string // still encoded
	hosts          string
	path           string
	query          string
}

// Parse parses a URL such as scheme://user:password@host1,host2/path?name=value with one of the given schemes. The
// error names the fault and shows no secret.
func Parse(rawURL string, schemes ...string) (URL, error) {
	u, ok := split(rawURL)
	if known := false; ok {
		for _, scheme := range schemes {
			known = known || u.scheme == scheme
		}
		ok = known
	}
	if !ok {
		return URL{}, fmt.Errorf("the store URL must begin with %s://", strings.Join(schemes, ":// or "))
	}
	// Check here, because the errors of later parsers would quote a part of a password with such characters.
	for _, s := range []string{u.user, u.password} {
		if _, err := url.PathUnescape(s); err != nil || strings.ContainsAny(s, ":/?#[]@") {
			return URL{}, u.Fault(errors.New("its user and password must be percent-encoded, such as %40 for @"))
		}
	}
	return u, nil
}

// split divides a URL into its parts; ok is false if it has no "://".
func split(rawURL string) (u URL, ok bool) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return URL{}, false
	}
	u.scheme = scheme
	// A password with an unencoded "/", "?" or "@" is a mistake that must be detected, so the last "@" ends the
	// password. None of these characters can be in the hosts, and an "@" in an option must be encoded.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		u.user, u.password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	rest, u.query, _ = strings.Cut(rest, "?")
	u.hosts, u.path, _ = strings.Cut(rest, "/")
	return u, true
}

// Scheme returns the scheme.
func (u URL) Scheme() string { return u.scheme }

// User returns the user's name, decoded; empty if there is none.
func (u URL) User() string { return decoded(u.user) }

// Password returns the user's password, decoded. It is a secret; it is empty if there is none.
func (u URL) Password() string { return decoded(u.password) }

// Hosts returns the hosts, each with its port if the URL has one.
func (u URL) Hosts() []string { return strings.Split(u.hosts, ",") }

// Path returns the text between the hosts and the options, without the first slash and still encoded. It is usually the
// name of a database.
func (u URL) Path() string { return u.path }

// Query returns the encoded options. Some of them may be secrets.
func (u URL) Query() string { return u.query }

// Options returns the decoded options. Some of them may be secrets. The error shows none.
func (u URL) Options() (url.Values, error) {
	options, err := url.ParseQuery(u.query)
	if err != nil {
		return nil, u.Fault(errors.New("its options can't be read: " +
			"they must be percent-encoded, as in ?name=value&name=value"))
	}
	return options, nil
}

// Fault returns an error about the URL. Its text has the URL and the text of err, both without secrets. It wraps err.
func (u URL) Fault(err error) error {
	return &fault{text: "store URL " + u.String() + ": " + u.Hide(err.Error()), err: err}
}

// Faultf returns a [URL.Fault] formatted like [fmt.Errorf].
func (u URL) Faultf(format string, args ...any) error { return u.Fault(fmt.Errorf(format, args...)) }

type fault struct {
	text string
	err  error
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.err }

// Hide removes the URL's secrets from a text, for example from the error of a library that quotes its input.
func (u URL) Hide(text string) string {
	hide := func(secret string) {
		for _, s := range []string{secret, decoded(secret)} {
			if s != "" {
				text = strings.ReplaceAll(text, s, mask)
			}
		}
		if s, err := url.QueryUnescape(secret); err == nil && s != "" { // in which a plus stands for a space
			text = strings.ReplaceAll(text, s, mask)
		}
	}
	for option := range strings.FieldsFuncSeq(u.query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(option, "=")
		if !isSecret(decoded(name)) {
			continue
		}
		hide(value)
		for property := range strings.SplitSeq(value, ",") { // as in MongoDB's authMechanismProperties
			_, value, _ := strings.Cut(property, ":")
			hide(value)
		}
	}
	if len(u.password) < 4 { // so short a text may occur elsewhere; a quoted URL has the password in this form
		return strings.ReplaceAll(text, ":"+u.password+"@", ":"+mask+"@")
	}
	hide(u.password)
	return text
}

// mask stands for a secret.
const mask = "***"

// isSecret reports whether an option with this name may be a secret in the URL of any store.
func isSecret(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"password", "secret", "token", "authmechanismproperties"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return false
}

// decoded removes percent-encoding; it returns malformed text unchanged.
func decoded(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// String returns the URL without its password and its options.
func (u URL) String() string {
	if u.scheme == "" {
		return ""
	}
	user := u.user
	if strings.ContainsAny(user, "/?#[]@") { // another "@" was taken for the end of the user
		return u.scheme + "://…"
	}
	if u.password != "" {
		user += ":" + mask
	}
	if user != "" {
		user += "@"
	}
	return u.scheme + "://" + user + u.address()
}

// GoString returns the text of String, for %#v.
func (u URL) GoString() string { return u.String() }

// MarshalText returns the text of String, for JSON and logs.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// address returns hosts and path.
func (u URL) address() string { return strings.TrimSuffix(u.hosts+"/"+u.path, "/") }

// Redact returns a store's URL for logs: without its password and its options. It returns a URL without "://", which
// names a file, unchanged.
func Redact(rawURL string) string {
	u, ok := split(rawURL)
	if !ok || u.scheme == fileScheme {
		return rawURL
	}
	return u.String()
}

// Address returns a store's URL for exports: without user, password and options.
func Address(rawURL string) string {
	u, ok := split(rawURL)
	if !ok || u.scheme == fileScheme {
		return rawURL
	}
	return u.scheme + "://" + u.address()
}

// fileScheme is the scheme of URLs that name files. They have neither users nor options.
const fileScheme = "sqlite"
