package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/store"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

func TestUsageErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	onStore(t, "sqlite:x.db", func(store.Store) {})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("nonsense://user:hunter2@host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string // part of the message
	}{
		{"no command", nil, nil, "serve"},
		{"unknown option", []string{"serve", "--bogus"}, nil, "--bogus"},
		{"unknown command", []string{"server"}, nil, "server"},
		{"tick is no duration", []string{"serve", "--tick=soon"}, nil, "--tick"},
		{"lease too short", []string{"serve", "--lease=30s"}, nil, "lease"},
		{"early eats the lease", []string{"serve", "--early=1d"}, nil, "early"},
		{"concurrency", []string{"serve", "--concurrency=0"}, nil, "concurrency"},
		{"catch-up limit", []string{"serve", "--catch-up-limit=0"}, nil, "--catch-up-limit"},
		{"shares of priorities that are none", []string{"serve", "--priority-shares=70/30"}, nil, "--priority-shares"},
		{"shares of priorities that are no numbers", []string{"serve", "--priority-shares=a/b/c"}, nil, "--priority-shares"},
		{"a priority without a share", []string{"serve", "--priority-shares=70/30/0"}, nil, "priority-shares"},
		{"a share of everything", []string{"serve", "--overdue-share=1"}, nil, "overdue-share"},
		{"a share of nothing that is a number", []string{"serve", "--overdue-share=NaN"}, nil, "overdue-share"},
		{"overdue at once", []string{"serve", "--overdue-after=0s"}, nil, "overdue-after"},
		{"destination's limit", []string{"serve", "--destination-max-in-flight=-1"}, nil, "destination-max-in-flight"},
		{"slow destination's limit", []string{"serve", "--slow-destination-max-in-flight=-1"}, nil, "slow-destination-max-in-flight"},
		{"failures that open a circuit", []string{"serve", "--circuit-failures=0"}, nil, "circuit-failures"},
		{"probes that never come", []string{"serve", "--circuit-probe=2m"}, nil, "circuit-longest-probe"},
		{"little to fire", []string{"serve", "--auto-priority", "--auto-priority-small=0"}, nil, "auto-priority-small"},
		{"tenants with metrics", []string{"serve", "--tenant-labels=-1"}, nil, "tenant-labels"},
		{"limit", []string{"serve", "--max-payload=-1"}, nil, "--max-payload"},
		{"log level", []string{"serve", "--log-level=loud"}, nil, "--log-level"},
		{"log format", []string{"serve", "--log-format=xml"}, nil, "--log-format"},
		{"rate", []string{"serve", "--limit-key-requests=fast"}, nil, "--limit-key-requests: must be a rate"},
		{"rate that is none", []string{"serve", "--limit-key-requests=NaN"}, nil, "--limit-key-requests: must be a rate"},
		{"burst without a rate", []string{"serve", "--limit-tenant-requests=0/5"}, nil, "--limit-tenant-requests: must be a rate"},
		{"quota", []string{"serve", "--limit-tenant-jobs=-1"}, nil, "--limit-tenant-jobs: must be a whole number"},
		{"audit trail in no folder", []string{"serve", "--audit=none/audit"}, nil, "--audit"},
		{"store", []string{"serve", "--store=oracle://host"}, nil, "--store"},
		{"store without a file", []string{"serve", "--store=sqlite:"}, nil, "--store"},
		{"memory with a name", []string{"serve", "--store=memory:jobs"}, nil, "--store"},
		{"MongoDB URL", []string{"serve", "--store=mongodb://"}, nil, "--store"},
		{"PostgreSQL URL", []string{"serve", "--store=postgres://user:hunter2@host/db?sslmode=perhaps"}, nil, "--store"},
		{"PostgreSQL URL with a password that is not encoded", []string{"serve", "--store=postgres://user:hunter2/@host/db"}, nil, "--store"},
		{"Redis URL", []string{"serve", "--store=redis://:hunter2@host/first"}, nil, "--store"},
		{"Redis URL of several hosts", []string{"serve", "--store=redis://:hunter2@host1,host2"}, nil, "cluster=true"},
		{"scheme before a password", []string{"serve", "--store=redis+tls:hunter2@host"}, nil, "redis+tls"},
		{"wait", []string{"serve", "--store-wait=-1s"}, nil, "--store-wait"},
		{"broker URL", []string{"serve", "--rabbitmq-url=http://host"}, nil, "--rabbitmq-url"},
		{"broker's certificate without a broker", []string{"serve", "--rabbitmq-ca-file=ca.pem"}, nil, "--rabbitmq-url"},
		{"Kafka broker", []string{"serve", "--kafka-brokers=kafka://host"}, nil, "--kafka-brokers"},
		{"Kafka without a broker", []string{"serve", "--kafka-tls"}, nil, "--kafka-brokers"},
		{"Kafka's password without a broker", []string{"serve"}, map[string]string{"CARILLON_KAFKA_PASSWORD": "x"}, "--kafka-brokers"},
		{"Kafka's password without a mechanism", []string{"serve", "--kafka-brokers=host", "--kafka-password=x"}, nil, "mechanism"},
		{"grants", []string{"serve", "--kafka-brokers=host", "--kafka-allow=topic"}, nil, "--kafka-allow: must be a tenant and a pattern"},
		{"grants of neither queues nor exchanges", []string{"serve", "--rabbitmq-url=amqp://host", "--rabbitmq-allow=acme=orders"}, nil, "--rabbitmq-allow: must have patterns that begin with queue: or exchange:"},
		{"grants without a broker", []string{"serve", "--rabbitmq-allow=acme=queue:orders"}, nil, "--rabbitmq-url"},
		{"grants without Kafka", []string{"serve", "--kafka-allow=acme=orders"}, nil, "--kafka-brokers"},
		{"address", []string{"serve", "--listen=nowhere:1:2"}, nil, "--listen: must be HOST:PORT"},
		{"a port alone", []string{"serve", "--listen", "9090"}, nil, "--listen: must be HOST:PORT, such as 127.0.0.1:9090, or :9090 "},
		{"a host alone", []string{"serve", "--listen", "localhost"}, nil, "--listen: must be HOST:PORT, such as 127.0.0.1:8080, or :8080 "},
		{"a host and no port", []string{"serve", "--listen", "localhost:"}, nil, "--listen: must be HOST:PORT"},
		{"a port that there is not", []string{"serve", "--listen", ":99999"}, nil, "--listen: must be HOST:PORT"},
		{"no address", []string{"serve", "--listen", ""}, nil, "--listen: must be HOST:PORT"},
		{"an address of another machine", []string{"serve", "--listen", "203.0.113.1:1", "--auth=keys"}, nil, "--listen: listen"},
		{"where to ask", []string{"healthcheck", "--listen", "9090"}, nil, "--listen: must be HOST:PORT"},
		{"a port alone for metrics", []string{"serve", "--metrics-listen", "9090"}, nil, "--metrics-listen: must be HOST:PORT"},
		{"metrics at an address of another machine", []string{"serve", "--metrics-listen", "203.0.113.1:1"}, nil, "--metrics-listen"},
		{"an empty certificate", []string{"serve", "--tls-cert=", "--tls-key="}, nil, "--tls-cert: must not be empty"},
		{"an empty key", []string{"serve", "--tls-key=", "--tls-cert=c.pem"}, nil, "--tls-key: must not be empty"},
		{"an empty authority", []string{"serve", "--tls-client-ca="}, nil, "--tls-client-ca: must not be empty"},
		{"an empty trail", []string{"serve", "--audit="}, nil, "--audit: must not be empty"},
		{"an empty issuer", []string{"serve", "--oidc-issuer="}, nil, "--oidc-issuer: must not be empty"},
		{"a certificate without a key", []string{"serve", "--tls-cert=c.pem"}, nil, "--tls-cert and --tls-key must be given together"},
		{"a key without a certificate", []string{"serve", "--tls-key=k.pem"}, nil, "--tls-cert and --tls-key must be given together"},
		{"a certificate that is not there", []string{"serve", "--tls-cert=c.pem", "--tls-key=k.pem"}, nil, "--tls-cert, --tls-key: open c.pem"},
		{"clients' authorities without TLS", []string{"serve", "--tls-client-ca=ca.pem"}, nil, "--tls-client-ca needs --tls-cert"},
		{"whether clients need certificates", []string{"serve", "--tls-client-certs=perhaps"}, nil, "--tls-client-certs: must be one of required, optional"},
		{"optional certificates of nobody", []string{"serve", "--tls-cert=c.pem", "--tls-key=k.pem", "--tls-client-certs=optional"}, nil, "--tls-client-certs needs --tls-client-ca"},
		{"no connections", []string{"serve", "--max-connections=0"}, nil, "--max-connections is 0; it must be at least 1"},
		{"no headers", []string{"serve", "--max-header-bytes=10"}, nil, "--max-header-bytes is 10; it must be at least 4096"},
		{"networks", []string{"serve", "--webhook-networks=some"}, nil, "--webhook-networks: must be one of public, private, any"},
		{"a network that is none", []string{"serve", "--webhook-allow=10.0.0.1/8"}, nil, "is 10.0.0.0/8 meant?"},
		{"a name for a network", []string{"serve", "--webhook-deny=example.com"}, nil, "--webhook-deny: must be addresses or networks"},
		{"ports", []string{"serve", "--webhook-ports=80-"}, nil, "--webhook-ports: must be ports such as"},
		{"a proxy that would check nothing", []string{"serve", "--webhook-networks=public"}, map[string]string{"HTTPS_PROXY": "proxy:3128"}, "--webhook-proxy"},
		{"a proxy where others can reach the API", []string{"serve", "--auth=keys", "--listen=:0"}, map[string]string{"HTTPS_PROXY": "proxy:3128"}, "--webhook-proxy"},
		{"negative tick", []string{"serve", "--tick", "-5s"}, nil, `--tick: must not be negative; "-5s" is`},
		{"negative tick in one", []string{"serve", "--tick=-5s"}, nil, `--tick: must not be negative; "-5s" is`},
		{"negative number", []string{"serve", "--concurrency", "-1"}, nil, "concurrency is -1"},
		{"a year", []string{"serve", "--retain", "1y"}, nil, "--retain: must be a duration such as"},
		{"longer than can be", []string{"serve", "--retain", "9999999h"}, nil, `--retain: must be at most 5200w, a hundred years, not "9999999h"`},
		{"no authentication on all addresses", []string{"serve", "--listen=:0"}, nil, "--auth=keys, and create the first key by"},
		{"no authentication on an address of others", []string{"serve", "--listen=192.0.2.1:0", "--auth=none"}, nil, "--insecure-no-auth-beyond-loopback"},
		{"no authentication on a name", []string{"serve", "--listen=example.com:0"}, nil, "--insecure-no-auth-beyond-loopback"},
		{"authentication of a kind that there is not", []string{"serve", "--auth=password"}, nil, "--auth: must be one of none, keys"},
		{"keys and none", []string{"serve", "--auth=keys", "--insecure-no-auth-beyond-loopback"}, nil, "leave it out with --auth=keys"},
		{"keys in memory", []string{"serve", "--auth=keys", "--store=memory:"}, nil, "no command can create a key"},
		{"tokens without keys", []string{"serve", "--oidc-issuer=https://login.example.com"}, nil, "need --auth=keys"},
		{"tokens of nobody", []string{"serve", "--auth=keys", "--oidc-audience=x"}, nil, "--oidc-audience needs --oidc-issuer"},
		{"tokens for nobody", []string{"serve", "--auth=keys", "--oidc-issuer=https://login.example.com"}, nil, "--oidc-audience: is required"},
		{"tokens without TLS", []string{"serve", "--auth=keys", "--oidc-issuer=http://login.example.com", "--oidc-audience=x"}, nil, "--oidc-issuer: must begin with https://"},
		{"options without a command", []string{"--store", "oracle://host"}, nil, `--store: "oracle"`},
		{"unknown option without a command", []string{"--stoer=x"}, nil, "--stoer"},
		{"an option and then a command", []string{"--store=sqlite:x.db", "export"}, nil, "export"},
		{"export without a store", []string{"export"}, nil, "--store"},
		{"export of no store", []string{"export", "--store=oracle://host"}, nil, "--store"},
		{"export into no folder", []string{"export", "--store=sqlite:x.db", "--output=none/export"}, nil, "--output"},
		{"export to go on with nothing", []string{"export", "--store=sqlite:x.db", "--resume"}, nil, "--resume"},
		{"import without a store", []string{"import"}, nil, "--store"},
		{"import of no file", []string{"import", "--store=sqlite:x.db", "--input=none"}, nil, "--input"},
		{"export from memory", []string{"export", "--store=memory:"}, nil, "nothing can be exported"},
		{"import into memory", []string{"import", "--store=memory:"}, nil, "nothing can be imported"},
		{"keys and no verb", []string{"keys"}, nil, "keys create"},
		{"keys without a store", []string{"keys", "create", "--role=admin"}, nil, "--store"},
		{"keys of memory", []string{"keys", "create", "--role=admin", "--store=memory:"}, nil, "--store"},
		{"keys of no store", []string{"keys", "list", "--store=oracle://host"}, nil, "--store"},
		{"keys of a file that is not there", []string{"keys", "list", "--store=sqlite:none.db"}, nil, "--store"},
		{"a key without a role", []string{"keys", "create", "--store=sqlite:x.db"}, nil, "--role"},
		{"a key of no role", []string{"keys", "create", "--store=sqlite:x.db", "--role=root"}, nil, "--role: must be one of viewer"},
		{"a key of no tenant", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--tenant=a,b/c"}, nil, "--tenant"},
		{"a key of all tenants and one", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--tenant=*,a"}, nil, "--tenant"},
		{"a key's prefix", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--key-prefix=\n"}, nil, "--key-prefix"},
		{"a key that has expired", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--expires-at=2020-01-01T00:00:00Z"}, nil, "--expires-at"},
		{"a key's end that is none", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--expires-at=soon"}, nil, "--expires-at: must be an RFC 3339"},
		{"a key with an empty tenant", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--tenant="}, nil, "--tenant"},
		{"a key with an empty prefix", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--key-prefix="}, nil, "--key-prefix: must not be empty"},
		{"a key with an empty end", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--expires-at="}, nil, "--expires-at: must not be empty"},
		{"a key for no time", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--expires-in=0s"}, nil, "--expires-in: must be more than zero"},
		{"a key with two ends", []string{"keys", "create", "--store=sqlite:x.db", "--role=admin", "--expires-in=1d", "--expires-at=2099-01-01T00:00:00Z"}, nil, "--expires-in and --expires-at"},
		{"no key to revoke", []string{"keys", "revoke", "--store=sqlite:x.db"}, nil, "by its id"},
		{"two keys to revoke", []string{"keys", "revoke", "--store=sqlite:x.db", "a", "b"}, nil, "by its id"},
		{"no id to revoke", []string{"keys", "revoke", "--store=sqlite:x.db", "hunter2"}, nil, "not the id of a key"},
		{"a copy to nowhere", []string{"keys", "copy", "--store=sqlite:x.db"}, nil, "--to is missing"},
		{"a copy of memory", []string{"keys", "copy", "--store=memory:", "--to=sqlite:x.db"}, nil, "--store: "},
		{"a copy of no file", []string{"keys", "copy", "--store=sqlite:none.db", "--to=sqlite:x.db"}, nil, "--store: "},
		{"too long an overlap", []string{"keys", "rotate", "--store=sqlite:x.db", "4iC0dQxYb7Zr", "--overlap=31d"}, nil, "--overlap"},
		{"import by file", []string{"import"}, map[string]string{"CARILLON_STORE_FILE": secret}, "--store"},
		{"by environment", []string{"serve"}, map[string]string{"CARILLON_TICK": "soon"}, "--tick"},
		{"by file", []string{"serve"}, map[string]string{"CARILLON_STORE_FILE": secret}, "--store"},
		{"by a file that is not there", []string{"serve"}, map[string]string{"CARILLON_STORE_FILE": "/nonexistent"}, "CARILLON_STORE_FILE"},
		{"by both", []string{"serve"}, map[string]string{"CARILLON_STORE_FILE": secret, "CARILLON_STORE": "sqlite:x"}, "CARILLON_STORE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			if code := run(c.args, &stdout, &stderr); code != cli.ExitUsage {
				t.Errorf("exit code %d, want %d", code, cli.ExitUsage)
			}
			if !strings.Contains(stderr.String(), c.want) {
				t.Errorf("the message does not name %s: %s", c.want, &stderr)
			}
			if strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("the message has the password: %s", &stderr)
			}
		})
	}
}

// A port that is taken may be free in a moment: that is no mistake in the configuration.
func TestPortTaken(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Chdir(t.TempDir())
	var stdout, stderr bytes.Buffer
	if code := run([]string{"serve", "--listen=" + listener.Addr().String()}, &stdout, &stderr); code != cli.ExitFailure {
		t.Errorf("exit code %d, want %d", code, cli.ExitFailure)
	}
	if !strings.Contains(stderr.String(), "choose another port by --listen=HOST:PORT") {
		t.Errorf("the message does not say what to do: %s", &stderr)
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"demo", "--help"}, {"export", "--help"}, {"import", "--help"}, {"healthcheck", "--help"},
		{"keys", "--help"}, {"keys", "create", "--help"}, {"keys", "list", "--help"}, {"keys", "rotate", "--help"}, {"keys", "revoke", "--help"}, {"--store=x", "--help"}, {"--version"},
		{"help"}, {"help", "serve"}, {"help", "export"}, {"help", "keys", "create"}, {"version"}} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != 0 {
			t.Errorf("%q: exit code %d: %s", args, code, &stderr)
		}
		if stdout.Len() == 0 {
			t.Errorf("%q prints nothing", args)
		}
	}
	var stdout, stderr bytes.Buffer
	run([]string{"serve", "--help"}, &stdout, &stderr)
	for _, option := range []string{
		"listen", "store", "rabbitmq-url", "kafka-brokers", "kafka-tls", "kafka-ca-file", "kafka-cert-file", "kafka-key-file",
		"kafka-sasl-mechanism", "kafka-username", "kafka-password", "kafka-auto-create-topics", "tick", "early", "lease", "callback-timeout", "concurrency", "shutdown-timeout", "retain",
		"auth", "insecure-no-auth-beyond-loopback", "oidc-issuer", "oidc-audience", "oidc-role-claim", "oidc-tenants-claim",
		"dead-letter-retain", "catch-up-limit", "max-instants", "max-payload", "max-body", "log-level", "log-format", "store-wait",
		"priority-shares", "overdue-after", "overdue-share", "auto-priority", "auto-priority-new", "auto-priority-small",
		"destination-max-in-flight", "slow-destination-max-in-flight", "circuit-failures", "circuit-probe", "circuit-longest-probe", "tenant-labels",
		"metrics-listen", "tls-cert", "tls-key", "tls-client-ca", "tls-client-certs", "max-connections", "max-header-bytes",
		"webhook-networks", "webhook-allow", "webhook-deny", "webhook-ports", "webhook-proxy",
		"rabbitmq-allow", "kafka-allow",
	} {
		if !strings.Contains(stdout.String(), "--"+option) {
			t.Errorf("the help does not tell of --%s", option)
		}
		if env := "$CARILLON_" + strings.ToUpper(strings.ReplaceAll(option, "-", "_")); !strings.Contains(stdout.String(), env) {
			t.Errorf("the help does not tell of %s", env)
		}
	}
}

// The options' defaults are those of the packages that they configure.
func TestDefaults(t *testing.T) {
	t.Setenv("CARILLON_TICK", "5s") // the environment does not matter
	o, err := service.Configure(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := o.Dispatcher(nil)
	if !reflect.DeepEqual(got, dispatcher.Defaults) {
		t.Errorf("the options' defaults are %+v, the dispatcher's %+v", got, dispatcher.Defaults)
	}
	if o.Retain != 24*time.Hour || o.MaxInstants != 100_000 || o.CatchUpLimit != 1000 {
		t.Errorf("retain is %s, the limits are %d instants and %d to catch up on", o.Retain, o.MaxInstants, o.CatchUpLimit)
	}
}

func TestDemo(t *testing.T) {
	t.Setenv("CARILLON_STORE", "nonsense:") // the demo has its own
	t.Setenv("CARILLON_UI", "off")          // that of serve; the demo's --ui is another option
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp) // its own: others may run a demo at the same time
	var stdout, stderr bytes.Buffer
	if code := run([]string{"demo"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	for _, want := range []string{"11 of 11 delivered", `"schedules"`, `"crontab"`, `"steps"`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the demo prints no %s:\n%s", want, &stdout)
		}
	}
	for name, line := range map[string]string{
		"instants": `(?m)^\S+ +instants +\S+Z +\S+ ms +{"hello": "world"}$`,
		"crontab":  `(?m)^\S+ +crontab +\S+Z +\S+ ms +{"backup": "now"}$`,
		"sequence": `(?m)^\S+ +sequence +\S+Z +\S+ ms +"tips"  step 3, for grace$`,
	} {
		if !regexp.MustCompile(line).MatchString(stdout.String()) {
			t.Errorf("no delivery of the %s is shown:\n%s", name, &stdout)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) > 0 {
		t.Errorf("the demo leaves %s behind", left)
	}
}
