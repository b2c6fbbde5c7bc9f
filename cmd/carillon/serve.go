package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const serveHelp = "Run the service: the HTTP API, and the dispatcher that fires due occurrences."

// serveCommand runs the service until it is told to stop.
type serveCommand struct {
	listen  address
	options service.Options
	log     logOptions
}

// Flags declares the options.
func (c *serveCommand) Flags(f *flag.FlagSet) {
	c.listen.flag(f, "Address of the HTTP API; :PORT is all addresses of this machine. There is no access control yet: "+
		"keep it on loopback or behind a proxy that has it.")
	c.options.Flags(f)
	c.log.flags(f)
}

// address is an option's host and port to listen at.
type address string

// flag declares the option --listen.
func (a *address) flag(f *flag.FlagSet, usage string) {
	*a = "127.0.0.1:8080"
	f.Var(a, "listen", "`HOST:PORT`: "+usage)
}

// Set implements [flag.Value].
func (a *address) Set(s string) error {
	*a = address(s)
	_, port, err := net.SplitHostPort(s)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err == nil && port != "" {
		return nil
	}
	port = "8080"
	if _, err := net.LookupPort("tcp", s); err == nil && s != "" {
		port = s
	}
	return fmt.Errorf("must be HOST:PORT, such as 127.0.0.1:%s, or :%[1]s for all of this machine's addresses; not %q",
		port, s)
}

// String implements [flag.Value].
func (a *address) String() string { return string(*a) }

// reachable is where to reach on this machine who listens at the address.
func (a address) reachable() string {
	host, port, _ := net.SplitHostPort(string(a)) // it was read as one
	switch ip := net.ParseIP(host); {
	case host == "" || ip.Equal(net.IPv4zero):
		host = "127.0.0.1"
	case ip.Equal(net.IPv6zero):
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

type logOptions struct{ level, format string }

func (o *logOptions) flags(f *flag.FlagSet) {
	cli.Choice(f, &o.level, "log-level", []string{"info", "debug", "warn", "error"}, "`LEVEL`: The least level to log.")
	cli.Choice(f, &o.format, "log-format", []string{"text", "json"}, "`FORMAT`: How to log, to standard error.")
}

func (o *logOptions) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.level)) // it is one of the choices
	handlerOptions := &slog.HandlerOptions{Level: level}
	if o.format == "json" {
		return slog.New(slog.NewJSONHandler(w, handlerOptions))
	}
	return slog.New(slog.NewTextHandler(w, handlerOptions))
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, in cli.Input) error {
	log := c.log.logger(in.Stderr)
	for _, w := range unknownVariables(os.Environ()) {
		log.Warn("the environment has what may be a mistake", "warning", w)
	}
	s, err := service.New(ctx, c.options, log)
	if err != nil && ctx.Err() != nil {
		log.Info("stopped while starting", "error", err)
		return nil //nolint:nilerr // it was told to stop, and has
	}
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.listen.String())
	if err != nil {
		_ = s.Close()
		if errors.Is(err, syscall.EADDRINUSE) { // it may be free in a moment
			return fmt.Errorf("--listen: %w (by another program, or by a replica that still runs; another port is had by "+
				"--listen=HOST:PORT)", err)
		}
		return cli.Usage(fmt.Errorf("--listen: %w", err))
	}
	log.Info("serving", "address", listener.Addr().String(), "store", storeurl.Redact(c.options.Store), "version",
		service.Version("carillon"))
	return s.Run(ctx, listener)
}
