package mongodb

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/carillon-scheduler/carillon/store"
)

// parseURL reads a store URL into its parts, with the database's name decoded, and the client's options. The error says
// what is wrong and shows no password.
func parseURL(rawURL string) (parts urlParts, opts *options.ClientOptions, err error) {
	parts, ok := splitURL(rawURL)
	if !ok {
		return parts, nil, errors.New("the store URL must begin with mongodb:// or mongodb+srv://")
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("store URL %s: %w", parts, fmt.Errorf(format, args...))
	}
	// Checked here because the driver's own errors would quote a part of a password that has such characters.
	for _, s := range []string{parts.user, parts.password} {
		if _, err := url.PathUnescape(s); err != nil || strings.ContainsAny(s, ":/?#[]@") {
			return parts, nil, bad("its user and password must be percent-encoded, such as %%40 for @")
		}
	}
	if parts.database, err = databaseName(parts.database); err != nil {
		return parts, nil, bad("%w", err)
	}
	opts = options.Client().ApplyURI(rawURL)
	if err := opts.Validate(); err != nil {
		if dns, ok := errors.AsType[*net.DNSError](err); ok {
			return parts, nil, bad("%w: %w", store.ErrUnavailable, dns)
		}
		return parts, nil, bad("%s", parts.hide(err.Error()))
	}

	opts.SetReadPreference(readpref.Primary()) // a secondary may lag, and a claim must see its job as it is
	if opts.WriteConcern == nil {
		opts.SetWriteConcern(writeconcern.Majority())
	}
	if !opts.WriteConcern.Acknowledged() {
		return parts, nil, bad("w=0 can't be used: what is not acknowledged may be lost")
	}
	if opts.AppName == nil {
		opts.SetAppName("carillon")
	}
	if opts.ServerSelectionTimeout == nil {
		opts.SetServerSelectionTimeout(5 * time.Second)
	}
	if opts.ConnectTimeout == nil {
		opts.SetConnectTimeout(5 * time.Second)
	}
	if opts.Timeout == nil {
		opts.SetTimeout(time.Minute) // of calls whose context sets no limit
	}
	return parts, opts, nil
}

// urlParts are the parts of a URL that are looked at here; the driver knows the rest.
type urlParts struct {
	scheme, user, password, hosts, database, query string
}

func splitURL(rawURL string) (p urlParts, ok bool) {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	if p.scheme = scheme; scheme != "mongodb" && scheme != "mongodb+srv" {
		return p, false
	}
	// A password with "/", "?" or "@" in it is a mistake, but one that must be found, so the last "@" ends it. None of
	// these can be in the hosts, and an "@" in the query would be one of a few options' values.
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		p.user, p.password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	rest, p.query, _ = strings.Cut(rest, "?")
	p.hosts, p.database, _ = strings.Cut(rest, "/")
	return p, true
}

// databaseName checks the name that a URL has as its path.
func databaseName(escaped string) (string, error) {
	if escaped == "" {
		return "carillon", nil
	}
	name, err := url.PathUnescape(escaped)
	if err != nil || len(name) > 63 || strings.ContainsAny(name, "/\\. \"$*<>:|?\x00") {
		return escaped, fmt.Errorf(`%q can't be a database's name: at most 63 bytes, none of / \ . " $ * < > : | ? and no space`, escaped)
	}
	return name, nil
}

// hide removes the query's secrets from an error's text. The driver quotes the options that it does not understand; it
// does not quote a password that is encoded as it must be.
func (p urlParts) hide(text string) string {
	var secrets []string
	for option := range strings.FieldsFuncSeq(p.query, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if strings.Contains(name, "password") || name == "authmechanismproperties" {
			secrets = append(secrets, value)
		}
	}
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		text = strings.ReplaceAll(text, secret, "***")
		if plain, err := url.QueryUnescape(secret); err == nil {
			text = strings.ReplaceAll(text, plain, "***")
		}
	}
	return text
}

// String is the URL without its password and options, for errors.
func (p urlParts) String() string {
	user := p.user
	if strings.ContainsAny(user, "/?") { // some other "@" was taken for the end of the user
		return p.scheme + "://…"
	}
	if p.password != "" {
		user += ":***"
	}
	if user != "" {
		user += "@"
	}
	return strings.TrimSuffix(p.scheme+"://"+user+p.hosts+"/"+p.database, "/")
}
