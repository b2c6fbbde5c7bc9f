package mongodb

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storeurl"
	"github.com/carillon-scheduler/carillon/store/storeurl/nearest"
)

// parseURL reads a store URL. It returns the URL, the name of its database and the options for the driver's client. The
// error names the fault and shows no secret.
func parseURL(rawURL string) (u storeurl.URL, database string, opts *options.ClientOptions, err error) {
	fail := func(err error) (storeurl.URL, string, *options.ClientOptions, error) { return u, "", nil, err }
	if u, err = storeurl.Parse(rawURL, "mongodb", "mongodb+srv"); err != nil {
		return fail(err)
	}
	if database, err = databaseName(u.Path()); err != nil {
		return fail(u.Fault(err))
	}
	if err := checkOptions(u.Query()); err != nil {
		return fail(u.Fault(err))
	}
	opts = options.Client().ApplyURI(rawURL)
	if err := opts.Validate(); err != nil {
		if dns, ok := errors.AsType[*net.DNSError](err); ok {
			return fail(u.Faultf("%w: %w", store.ErrUnavailable, dns))
		}
		return fail(u.Fault(err))
	}

	opts.SetReadPreference(readpref.Primary()) // a secondary may lag, and a claim must see its job's present state
	opts.SetReadConcern(readconcern.Local())   // a claim must see its own writes with every w
	if opts.WriteConcern == nil {
		opts.SetWriteConcern(writeconcern.Majority())
	}
	switch opts.WriteConcern.W {
	case nil: // the URL sets other write options only
		opts.WriteConcern.W = writeconcern.WCMajority
	case 0:
		return fail(u.Faultf("w=0 can't be used: unacknowledged writes may be lost"))
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
	return u, database, opts, nil
}

// knownOptions are the options that a URL may have: the driver's, by their names in MongoDB's manual. parseURL
// overrides readConcernLevel, readPreference, readPreferenceTags and maxStalenessSeconds. The options socketTimeoutMS
// and wtimeoutMS have no effect, since the driver has only one time limit for a whole call.
var knownOptions = []string{
	"appName", "authMechanism", "authMechanismProperties", "authSource", "compressors", "connect", "connectTimeoutMS",
	"directConnection", "enableOverloadRetargeting", "heartbeatFrequencyMS", "journal", "loadBalanced",
	"localThresholdMS", "maxAdaptiveRetries", "maxConnecting", "maxIdleTimeMS", "maxPoolSize", "maxStalenessSeconds",
	"minPoolSize", "readConcernLevel", "readPreference", "readPreferenceTags", "replicaSet", "retryReads",
	"retryWrites", "serverMonitoringMode", "serverSelectionTimeoutMS", "socketTimeoutMS", "srvMaxHosts",
	"srvServiceName", "ssl", "timeoutMS", "tls", "tlsCAFile", "tlsCertificateFile", "tlsCertificateKeyFile",
	"tlsCertificateKeyFilePassword", "tlsDisableCertificateRevocationCheck", "tlsDisableOCSPEndpointCheck",
	"tlsInsecure", "tlsPrivateKeyFile", "w", "wtimeoutMS", "zlibCompressionLevel", "zstdCompressionLevel",
}

// otherNames are older names of known options.
var otherNames = []string{
	"heartbeatIntervalMS", "maxStaleness", "sslCertificateAuthorityFile", "sslClientCertificateKeyFile",
	"sslClientCertificateKeyPassword", "sslInsecure",
}

// insteadOf maps options of other drivers, in lower case, to this driver's equivalents.
var insteadOf = map[string]string{
	"tlsallowinvalidcertificates": "tlsInsecure",
	"tlsallowinvalidhostnames":    "tlsInsecure",
	"waitqueuetimeoutms":          "timeoutMS",
}

// checkOptions refuses unknown options, which the driver would ignore. The driver itself refuses an option without a
// value.
func checkOptions(query string) error {
	for option := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || r == ';' }) {
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
		return fmt.Errorf("unknown option %q; the known options are %s", name, strings.Join(knownOptions, ", "))
	}
	return nil
}

// meant returns the known option that is most similar to an unknown one; empty if none is.
func meant(name string) string {
	if instead, ok := insteadOf[strings.ToLower(name)]; ok {
		return instead
	}
	return nearest.Name(name, knownOptions)
}

// databaseName decodes and checks the name of the database in a URL's path.
func databaseName(escaped string) (string, error) {
	if escaped == "" {
		return "carillon", nil
	}
	name, err := url.PathUnescape(escaped)
	if err != nil || len(name) > 63 || strings.ContainsAny(name, "/\\. \"$*<>:|?\x00") {
		return escaped, fmt.Errorf(
			`%q can't be a database's name: at most 63 bytes, none of / \ . " $ * < > : | ? and no space`, escaped)
	}
	return name, nil
}
