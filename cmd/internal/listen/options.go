package listen

import (
	"errors"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// Options configure the listeners of a service.
type Options struct {
	// Address is the address of the API.
	Address Address
	// Observe is the address of metrics, health and profiles. If it is empty, metrics and health are at the API's address.
	Observe Address
	TLS     TLS
	// Connections is the maximum number of connections to the API.
	Connections int
	// HeaderBytes is the maximum size of a request's header, in bytes.
	HeaderBytes int
}

// TLS names the PEM files that authenticate the API to its clients, and the clients to the API.
type TLS struct {
	// CertFile has the certificate and the intermediate certificates; empty means no TLS.
	CertFile string
	KeyFile  string
	// ClientCAFile has the authorities of clients' certificates; empty means that no certificates are requested.
	ClientCAFile string
	// ClientCerts is "required" or "optional". An optional certificate is verified if the client sends one.
	ClientCerts string
}

// Flags declares the options, and sets them to their defaults.
func (o *Options) Flags(f *flag.FlagSet) {
	FlagAddresses(f, &o.Address, &o.Observe)
	FlagTLS(f, &o.TLS)
	cli.Text(f, &o.TLS.KeyFile, "tls-key", "`FILE`: PEM file of the certificate's key.")
	cli.Choice(f, &o.TLS.ClientCerts, "tls-client-certs", []string{"required", "optional"},
		"`WHETHER`: Whether clients must have a certificate, with --tls-client-ca. Each certificate is verified.")
	f.IntVar(&o.Connections, "max-connections", 4096,
		"`N`: Maximum number of connections to the API. At the maximum, those that wait longest for their clients are "+
			"closed.")
	f.IntVar(&o.HeaderBytes, "max-header-bytes", 65_536, "`BYTES`: Maximum size of a request's header.")
}

// FlagAddresses declares the options for addresses.
func FlagAddresses(f *flag.FlagSet, api, observe *Address) {
	*api = "127.0.0.1:8080"
	f.Var(api, "listen", "`HOST:PORT`: Address of the HTTP API; :PORT is all addresses of this machine. Beyond loopback, "+
		"--auth=keys is needed.")
	f.Var(observe, "metrics-listen", "`HOST:PORT`: Address of another listener, without TLS, for /metrics, /healthz, "+
		"/readyz and /debug/pprof. /metrics is then there only. (none; /metrics is at the API's address)")
}

// FlagTLS declares the options that show whether the API has TLS.
func FlagTLS(f *flag.FlagSet, t *TLS) {
	cli.Text(f, &t.CertFile, "tls-cert",
		"`FILE`: PEM file of the API's certificate, with the intermediate certificates. The files are read again when they "+
			"change. (no TLS)")
	cli.Text(f, &t.ClientCAFile, "tls-client-ca",
		"`FILE`: PEM file of the authorities that clients' certificates are verified with. (none is asked for)")
}

// Check checks the options without other resources. Errors name the wrong option.
func (o *Options) Check() error {
	switch t := o.TLS; {
	case (t.CertFile == "") != (t.KeyFile == ""):
		return errors.New("--tls-cert and --tls-key must be given together")
	case t.ClientCAFile != "" && t.CertFile == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case t.ClientCerts == "optional" && t.ClientCAFile == "":
		return errors.New("--tls-client-certs needs --tls-client-ca")
	case o.Connections < 1:
		return fmt.Errorf("--max-connections is %d; it must be at least 1", o.Connections)
	case o.HeaderBytes < 4096:
		return fmt.Errorf("--max-header-bytes is %d; it must be at least 4096", o.HeaderBytes)
	}
	return nil
}
