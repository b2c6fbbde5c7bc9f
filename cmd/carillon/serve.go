package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// serveCommand runs the service until it is told to stop.
type serveCommand struct {
	Listen address `default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Address of the HTTP API; :PORT is all of this machine's. There is no access control yet: keep it on loopback or behind a proxy that has it. (${default})"`
	service.Options
	logOptions

	unknown []string // what is to be said of the environment
}

type logOptions struct {
	LogLevel  level  `default:"info" placeholder:"LEVEL" help:"What to log at least: debug, info, warn or error. (${default})"`
	LogFormat string `default:"text" enum:"text,json" placeholder:"FORMAT" help:"How to log, to standard error: text or json. (${default})"`
}

// address is an option's host and port to listen at.
type address string

func (a *address) UnmarshalText(b []byte) error {
	*a = address(b)
	_, port, err := net.SplitHostPort(string(b))
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port)
	}
	if err == nil && port != "" {
		return nil
	}
	port = "8080"
	if _, err := net.LookupPort("tcp", string(b)); err == nil && len(b) > 0 {
		port = string(b)
	}
	return fmt.Errorf("must be HOST:PORT, such as 127.0.0.1:%s, or :%[1]s for all of this machine's addresses; not %q", port, b)
}

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

// level is an option's log level.
type level slog.Level

func (l *level) UnmarshalText(b []byte) error {
	switch name := string(b); name {
	case "debug", "info", "warn", "error":
		return (*slog.Level)(l).UnmarshalText(b)
	default:
		return fmt.Errorf("must be one of debug, info, warn, error, not %q", name)
	}
}

func (o logOptions) logger(w io.Writer) *slog.Logger {
	handlerOptions := &slog.HandlerOptions{Level: slog.Level(o.LogLevel)}
	if o.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, handlerOptions))
	}
	return slog.New(slog.NewTextHandler(w, handlerOptions))
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, out cli.Output) error {
	log := c.logger(out.Stderr)
	for _, w := range c.unknown {
		log.Warn("the environment has what may be a mistake", "warning", w)
	}
	s, err := service.New(ctx, c.Options, log)
	if err != nil && ctx.Err() != nil {
		log.Info("stopped while starting", "error", err)
		return nil //nolint:nilerr // it was told to stop, and has
	}
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", string(c.Listen))
	if err != nil {
		_ = s.Close()
		if errors.Is(err, syscall.EADDRINUSE) { // it may be free in a moment
			return fmt.Errorf("--listen: %w (by another program, or by a replica that still runs; another port is had by --listen=HOST:PORT)", err)
		}
		return cli.Usage(fmt.Errorf("--listen: %w", err))
	}
	log.Info("serving", "address", listener.Addr().String(), "store", redact(c.Store), "version", service.Version("carillon"))
	return s.Run(ctx, listener)
}

// redact leaves of a store's URL what may be shown: neither its password nor its options, some of which are secrets.
// Not all of these URLs are such as net/url reads.
func redact(rawURL string) string {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok || scheme == "sqlite" {
		return rawURL
	}
	user := ""
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		name, password, _ := strings.Cut(rest[:at], ":")
		if password != "" {
			name += ":***"
		}
		user, rest = name+"@", rest[at+1:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + user + rest
}
