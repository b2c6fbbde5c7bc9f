package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

const healthcheckHelp = "Ask the service on this machine whether it runs, for the HEALTHCHECK of a container: exit " +
	"code 0 if so, else 1."

// healthcheckCommand asks a service on this machine how it is. The address comes from the environment, like its own.
type healthcheckCommand struct{ listen address }

// Flags declares the options.
func (c *healthcheckCommand) Flags(f *flag.FlagSet) {
	c.listen.flag(f, "Where the service listens, as for serve.")
}

// healthcheckPatience bounds the question. Who asks again and again has a bound of their own.
const healthcheckPatience = 30 * time.Second

// Run asks /healthz, and fails unless the answer is that the service runs.
func (c *healthcheckCommand) Run(ctx context.Context, in cli.Input) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckPatience)
	defer cancel()
	url := "http://" + c.listen.reachable() + "/healthz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return cli.Usage(fmt.Errorf("--listen: %w", err))
	}
	client := http.Client{Transport: &http.Transport{}} // which goes by no proxy: it is this machine that is asked
	answer, err := client.Do(request)
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
