package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"os"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const serveHelp = "Run the service: the HTTP API, and the dispatcher that fires due occurrences."

// serveCommand runs the service until an interrupt or SIGTERM.
type serveCommand struct {
	options service.Options
	log     logOptions
}

// Flags declares the options.
func (c *serveCommand) Flags(f *flag.FlagSet) {
	c.options.Flags(f)
	c.log.flags(f)
}

type logOptions struct{ level, format string }

func (o *logOptions) flags(f *flag.FlagSet) {
	cli.Choice(f, &o.level, "log-level", []string{"info", "debug", "warn", "error"}, "`LEVEL`: The minimum level to log.")
	cli.Choice(f, &o.format, "log-format", []string{"text", "json"}, "`FORMAT`: Format of the log on standard error.")
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
		log.Warn("the environment may have a mistake", "warning", w)
	}
	service.LogResources(log)
	s, err := service.New(ctx, c.options, log)
	if err != nil && ctx.Err() != nil {
		log.Info("stopped while starting", "error", err)
		return nil //nolint:nilerr // this is the requested stop
	}
	if err != nil {
		return err
	}
	listener, err := c.options.Listen.Address.Open(ctx, "listen")
	if err != nil {
		_ = s.Close()
		return err
	}
	log.Info("serving", "address", listener.Addr().String(), "store", storeurl.Redact(c.options.Store), "version",
		service.Version("carillon"))
	return s.Run(ctx, listener)
}
