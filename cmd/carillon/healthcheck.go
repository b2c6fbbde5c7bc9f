package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
)

const healthcheckHelp = "Check that the service on this machine runs, for the HEALTHCHECK of a container: exit " +
	"code 0 if so, else 1."

// healthcheckCommand checks a service on this machine. Its options come from the environment, like the service's own.
type healthcheckCommand struct {
	api, observe listen.Address
	tls          listen.TLS
}

// Flags declares the options.
func (c *healthcheckCommand) Flags(f *flag.FlagSet) {
	listen.FlagAddresses(f, &c.api, &c.observe)
	listen.FlagTLS(f, &c.tls)
}

// healthcheckPatience bounds the request. Tools that repeat the check have bounds of their own.
const healthcheckPatience = 30 * time.Second

// Run requests /healthz, and fails unless the service runs. If metrics have an address of their own, it uses that
// address.
func (c *healthcheckCommand) Run(ctx context.Context, in cli.Input) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckPatience)
	defer cancel()
	url := "http://" + c.api.Reachable() + "/healthz"
	switch {
	case c.observe != "":
		url = "http://" + c.observe.Reachable() + "/healthz"
	case c.tls.CertFile != "":
		url = "https://" + c.api.Reachable() + "/healthz"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return cli.Usage(fmt.Errorf("--listen: %w", err))
	}
	client := http.Client{Transport: &http.Transport{ // without a proxy: the service is on this machine
		// The certificate is for other names than this machine's address. The request and the answer contain no secrets.
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}, //nolint:gosec // see above
	}}
	answer, err := client.Do(request)
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && c.tls.ClientCAFile != "" {
		_, err = fmt.Fprintf(in.Stdout, "%s asks for a client certificate, so it runs\n", url)
		return err
	}
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	_, err = io.Copy(in.Stdout, answer.Body)
	return err
}
