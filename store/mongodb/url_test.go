package mongodb_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/carillon-scheduler/carillon/store/mongodb"
)

// TestConcerns: writes are acknowledged by a majority unless the URL sets w, whatever its other write options are. The
// URL can't change the read concern.
func TestConcerns(t *testing.T) {
	for _, c := range []struct {
		query   string
		w       any
		journal string
	}{
		{"", "majority", "unset"},
		{"journal=true", "majority", "true"},
		{"journal=false", "majority", "false"},
		{"JOURNAL=true", "majority", "true"},
		{"wtimeoutMS=1000", "majority", "unset"},
		{"journal=true&wtimeoutMS=1000", "majority", "true"},
		{"w=", "majority", "unset"},
		{"w=majority", "majority", "unset"},
		{"w=majority&journal=true", "majority", "true"},
		{"w=1", 1, "unset"},
		{"w=1&journal=true", 1, "true"},
		{"journal=false&w=2", 2, "false"},
		{"w=2&wtimeoutMS=1000", 2, "unset"},
		{"w=datacenters", "datacenters", "unset"},
		{"readPreference=secondary", "majority", "unset"},
		{"readPreference=secondaryPreferred&readPreferenceTags=dc:a&maxStalenessSeconds=120", "majority", "unset"},
		{"readConcernLevel=available", "majority", "unset"},
		{"readConcernLevel=linearizable", "majority", "unset"},
	} {
		opts, err := mongodb.ClientOptions("mongodb://h/db?" + c.query)
		if err != nil {
			t.Errorf("%q: %v", c.query, err)
			continue
		}
		journal := "unset"
		if j := opts.WriteConcern.Journal; j != nil {
			journal = fmt.Sprint(*j)
		}
		if w := opts.WriteConcern.W; w != c.w || journal != c.journal {
			t.Errorf("%q: w is %v and journal %s, want %v and %s", c.query, w, journal, c.w, c.journal)
		}
		if mode := opts.ReadPreference.Mode(); mode != readpref.PrimaryMode {
			t.Errorf("%q: reads go to %s", c.query, mode)
		}
		if opts.ReadConcern == nil || opts.ReadConcern.Level != "local" {
			t.Errorf("%q: the read concern is %v, want local", c.query, opts.ReadConcern)
		}
	}
}

// TestUnknownOptions: an unknown option is refused by name, with a suggestion.
func TestUnknownOptions(t *testing.T) {
	for _, c := range []struct{ query, want string }{
		{"replicaset=rs0&tls=true", ""},
		{"appName=x;retryWrites=true", ""},
		{"retryWrites=true&w=majority&appName=Cluster0", ""},
		{"ssl=true&replicaSet=globaldb&retrywrites=false&maxIdleTimeMS=120000&appName=%40x%40", ""},
		{"retryReads=false&socketTimeoutMS=1000&serverMonitoringMode=poll", ""},
		{"connectTimeout%4DS=1000", ""},
		{"replicatSet=rs0", `unknown option "replicatSet"; is replicaSet meant?`},
		{"w=1&jornal=true", `unknown option "jornal"; is journal meant?`},
		{"serverSelectionTimeout=5", `unknown option "serverSelectionTimeout"; is serverSelectionTimeoutMS meant?`},
		{"maxPoolsSize=5", "is maxPoolSize meant?"},
		{"tlsAllowInvalidCertificates=true", "is tlsInsecure meant?"},
		{"waitQueueTimeoutMS=10", "is timeoutMS meant?"},
		{"colour=blue", `unknown option "colour"; the known options are appName, authMechanism`},
		{"tls=true&%20w=1", `unknown option " w"; is w meant?`},
	} {
		_, err := mongodb.ClientOptions("mongodb://user:SECRET@h/db?" + c.query)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.query, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q answers %v, want %q", c.query, err, c.want)
		}
	}
}
