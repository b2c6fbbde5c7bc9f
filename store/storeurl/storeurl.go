// Package storeurl reads the URLs of stores, and is the one place that decides which parts of them may be shown: logs,
// errors and exports get no password and no option that may be a secret.
//
// Not all of these URLs are ones that net/url reads: some have several hosts.
package storeurl

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// URL is a store's URL in its parts. However it is printed, logged or encoded, it is as [URL.String] has it.
type URL struct {
	scheme         string
	user, password string // as they were written
	hosts          string
	path           string
	query          string
}

// Parse reads a URL such as scheme://user:password@host1,host2/path?name=value, with one of the schemes. The error says
// what is wrong, and has no secret.
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
	// Checked here because errors of what reads the URL next would quote a part of a password that has such characters.
	for _, s := range []string{u.user, u.password} {
		if _, err := url.PathUnescape(s); err != nil || strings.ContainsAny(s, ":/?#[]@") {
			return URL{}, u.Fault(errors.New("its user and password must be percent-encoded, such as %40 for @"))
		}
	}
	return u, nil
}

// split takes a URL apart; ok is false if it has no "://".
func split(rawURL string) (u URL, ok bool) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return URL{}, false
	}
	u.scheme = scheme
	// A password with "/", "?" or "@" in it is a mistake, but one that must be found, so the last "@" ends it. None of
	// these can be in the hosts, and an "@" in an option must be encoded.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		u.user, u.password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	rest, u.query, _ = strings.Cut(rest, "?")
	u.hosts, u.path, _ = strings.Cut(rest, "/")
	return u, true
}

// Scheme is that of the URL.
func (u URL) Scheme() string { return u.scheme }

// User is the user's name, decoded; empty if there is none.
func (u URL) User() string { return decoded(u.user) }

// Password is the user's password, decoded: a secret. It is empty if there is none.
func (u URL) Password() string { return decoded(u.password) }

// Hosts are the hosts, with their ports as far as they are given.
func (u URL) Hosts() []string { return strings.Split(u.hosts, ",") }

// Path is what follows the hosts and a slash, as it was written: the name of a database, mostly.
func (u URL) Path() string { return u.path }

// Query is the options as they were written, some of which may be secrets.
func (u URL) Query() string { return u.query }

// Options are the options, some of which may be secrets. The error has none.
func (u URL) Options() (url.Values, error) {
	options, err := url.ParseQuery(u.query)
	if err != nil {
		return nil, u.Fault(errors.New("its options can't be read: " +
			"they must be percent-encoded, as in ?name=value&name=value"))
	}
	return options, nil
}

// Fault is an error of the URL. Its text names the URL, and is err's without secrets; it wraps err.
func (u URL) Fault(err error) error {
	return &fault{text: "store URL " + u.String() + ": " + u.Hide(err.Error()), err: err}
}

// Faultf makes a [URL.Fault] as [fmt.Errorf] makes an error.
func (u URL) Faultf(format string, args ...any) error { return u.Fault(fmt.Errorf(format, args...)) }

type fault struct {
	text string
	err  error
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.err }

// Hide replaces the URL's secrets in a text, such as the error of a library that quotes what it does not understand.
func (u URL) Hide(text string) string {
	hide := func(secret string) {
		for _, s := range []string{secret, decoded(secret)} {
			if s != "" {
				text = strings.ReplaceAll(text, s, mask)
			}
		}
		if s, err := url.QueryUnescape(secret); err == nil && s != "" { // which has a plus for a space
			text = strings.ReplaceAll(text, s, mask)
		}
	}
	for option := range strings.FieldsFuncSeq(u.query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(option, "=")
		if !isSecret(decoded(name)) {
			continue
		}
		hide(value)
		for property := range strings.SplitSeq(value, ",") { // as MongoDB's authMechanismProperties have
			_, value, _ := strings.Cut(property, ":")
			hide(value)
		}
	}
	if len(u.password) < 4 { // a text has that for other reasons; a URL that is quoted has it so
		return strings.ReplaceAll(text, ":"+u.password+"@", ":"+mask+"@")
	}
	hide(u.password)
	return text
}

// mask stands for a secret.
const mask = "***"

// isSecret tells whether an option of a name may be a secret, of any store's.
func isSecret(name string) bool {
	name = strings.ToLower(name)
	for _, s := range []string{"password", "secret", "token", "authmechanismproperties"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return false
}

// decoded is a text without percent-encoding, or as it is if that is malformed.
func decoded(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

// String is the URL without its password and its options.
func (u URL) String() string {
	if u.scheme == "" {
		return ""
	}
	user := u.user
	if strings.ContainsAny(user, "/?#[]@") { // some other "@" was taken for the end of the user
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

// GoString is as String, for %#v.
func (u URL) GoString() string { return u.String() }

// MarshalText is as String, for JSON and logs.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// address is hosts and path.
func (u URL) address() string { return strings.TrimSuffix(u.hosts+"/"+u.path, "/") }

// Redact is a store's URL as it may be logged: without its password and its options. A URL without "://" names a file,
// and is whole.
func Redact(rawURL string) string {
	u, ok := split(rawURL)
	if !ok || u.scheme == fileScheme {
		return rawURL
	}
	return u.String()
}

// Address is a store's URL as it may be written down: without its user too.
func Address(rawURL string) string {
	u, ok := split(rawURL)
	if !ok || u.scheme == fileScheme {
		return rawURL
	}
	return u.scheme + "://" + u.address()
}

// fileScheme is the scheme of URLs that name files, which have neither users nor options.
const fileScheme = "sqlite"
