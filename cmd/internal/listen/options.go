package listen

import (
	"errors"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// Options configure how a service is reached.
type Options struct {
	// Address is that of the API.
	Address Address
	// Observe is the address of metrics, health and profiles; empty has the first two at the API's.
	Observe Address
	TLS     TLS
	// Connections is how many clients may be connected to the API at once.
	Connections int
	// HeaderBytes is how large the header of a request may be.
	HeaderBytes int
}

// TLS names the files, in PEM form, by which clients of the API are sure of it, and it of them.
type TLS struct {
	// CertFile has the certificate and those of the authorities between it and the root; empty serves without TLS.
	CertFile string
	KeyFile  string
	// ClientCAFile has the authorities of clients' certificates; empty asks for none.
	ClientCAFile string
	// ClientCerts is required or optional. An optional one is verified if there is one.
	ClientCerts string
}

// Flags declares the options, and sets them to their defaults.
func (o *Options) Flags(f *flag.FlagSet) {
	FlagAddresses(f, &o.Address, &o.Observe)
	FlagTLS(f, &o.TLS)
	f.StringVar(&o.TLS.KeyFile, "tls-key", "", "`FILE`: PEM file of the certificate's key.")
	cli.Choice(f, &o.TLS.ClientCerts, "tls-client-certs", []string{"required", "optional"},
		"`WHETHER`: Whether clients must have a certificate, with --tls-client-ca. One that is given is always verified.")
	f.IntVar(&o.Connections, "max-connections", 4096,
		"`N`: How many clients may be connected to the API at once. Beyond that, those which have kept it waiting the "+
			"longest make room.")
	f.IntVar(&o.HeaderBytes, "max-header-bytes", 65_536, "`BYTES`: How large the header of a request may be.")
}

// FlagAddresses declares the options for addresses.
func FlagAddresses(f *flag.FlagSet, api, observe *Address) {
	*api = "127.0.0.1:8080"
	f.Var(api, "listen", "`HOST:PORT`: Address of the HTTP API; :PORT is all addresses of this machine. Beyond loopback, "+
		"--auth=keys is needed.")
	f.Var(observe, "metrics-listen", "`HOST:PORT`: Address of another listener, without TLS, for /metrics, /healthz, "+
		"/readyz and /debug/pprof. /metrics is then there only. (none; /metrics is at the API's address)")
}

// FlagTLS declares the options that tell which TLS the API has.
func FlagTLS(f *flag.FlagSet, t *TLS) {
	f.StringVar(&t.CertFile, "tls-cert", "",
		"`FILE`: PEM file of the API's certificate, with those between it and its root. The files are read again when they "+
			"change. (no TLS)")
	f.StringVar(&t.ClientCAFile, "tls-client-ca", "",
		"`FILE`: PEM file of the authorities that clients' certificates are verified with. (none is asked for)")
}

// Check checks what only needs the options. Errors name the one that is wrong.
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
