package mongodb

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/carillon-scheduler/carillon/nearest"
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
	if err := parts.checkOptions(); err != nil {
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
	opts.SetReadConcern(readconcern.Local())   // a claim must see what it has just written, whatever w is
	if opts.WriteConcern == nil {
		opts.SetWriteConcern(writeconcern.Majority())
	}
	switch opts.WriteConcern.W {
	case nil: // other options of writes alone
		opts.WriteConcern.W = writeconcern.WCMajority
	case 0:
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

// knownOptions are the options that a URL may have: those of the driver, by the names that MongoDB's manual gives them,
// and older names of some. Of them readConcernLevel, readPreference, readPreferenceTags and maxStalenessSeconds are
// overridden here, and socketTimeoutMS and wtimeoutMS change nothing, since the driver has only one time limit for a
// whole call.
var knownOptions = []string{
	"appName", "authMechanism", "authMechanismProperties", "authSource", "compressors", "connect", "connectTimeoutMS", "directConnection",
	"enableOverloadRetargeting", "heartbeatFrequencyMS", "journal", "loadBalanced", "localThresholdMS", "maxAdaptiveRetries", "maxConnecting",
	"maxIdleTimeMS", "maxPoolSize", "maxStalenessSeconds", "minPoolSize", "readConcernLevel", "readPreference", "readPreferenceTags",
	"replicaSet", "retryReads", "retryWrites", "serverMonitoringMode", "serverSelectionTimeoutMS", "socketTimeoutMS", "srvMaxHosts",
	"srvServiceName", "ssl", "timeoutMS", "tls", "tlsCAFile", "tlsCertificateFile", "tlsCertificateKeyFile", "tlsCertificateKeyFilePassword",
	"tlsDisableCertificateRevocationCheck", "tlsDisableOCSPEndpointCheck", "tlsInsecure", "tlsPrivateKeyFile", "w", "wtimeoutMS",
	"zlibCompressionLevel", "zstdCompressionLevel",
}

// otherNames are older names of known options.
var otherNames = []string{
	"heartbeatIntervalMS", "maxStaleness", "sslCertificateAuthorityFile", "sslClientCertificateKeyFile", "sslClientCertificateKeyPassword", "sslInsecure",
}

// insteadOf are options of other drivers, in lower case, and what this one has for them.
var insteadOf = map[string]string{
	"tlsallowinvalidcertificates": "tlsInsecure",
	"tlsallowinvalidhostnames":    "tlsInsecure",
	"waitqueuetimeoutms":          "timeoutMS",
}

// checkOptions refuses options that are not known, which the driver would ignore. One that has no value, it refuses
// itself.
func (p urlParts) checkOptions() error {
	for option := range p.options() {
		name, _, ok := strings.Cut(option, "=")
		name, err := url.QueryUnescape(name)
		if !ok || err != nil {
			continue
		}
		same := func(known string) bool { return strings.EqualFold(known, name) }
		if slices.ContainsFunc(knownOptions, same) || slices.ContainsFunc(otherNames, same) {
			continue
		}
		if known := meant(name); known != "" {
			return fmt.Errorf("unknown option %q; is %s meant?", name, known)
		}
		return fmt.Errorf("unknown option %q; those that are known are %s", name, strings.Join(knownOptions, ", "))
	}
	return nil
}

// meant is the known option that an unknown one was probably meant to be; empty if there is none.
func meant(name string) string {
	if instead, ok := insteadOf[strings.ToLower(name)]; ok {
		return instead
	}
	return nearest.Name(name, knownOptions)
}

// options are those of the query, each with its value.
func (p urlParts) options() iter.Seq[string] {
	return strings.FieldsFuncSeq(p.query, func(r rune) bool { return r == '&' || r == ';' })
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
	for option := range p.options() {
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
